"""Positional encodings that a model is trained with: one file each; README.md says how to add one."""
