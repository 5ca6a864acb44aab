"""Positional encodings that a model is trained with: one file each; README.md: how to add one."""
