"""Corpora of texts, pictures and clips, tokenizers, held-out splits, frozen targets, windows."""
