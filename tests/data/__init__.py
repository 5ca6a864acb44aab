"""Tests of posbench.data."""
