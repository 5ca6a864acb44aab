"""Evaluation of trained runs: what is scored, what it is compared with, how sure it is."""
