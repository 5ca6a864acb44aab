"""Rescalings of a trained rotary model, applied without training: one file each."""
