"""Text corpora, tokenizers, the held-out split, frozen targets and the windows cut from them."""
