"""Samplers of positions, in training and in test: one file each."""
