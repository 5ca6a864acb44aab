"""Floating-point operations that a model needs, counted from its shape.

A multiplication and an addition are two. Counted are the matrix products of projections, MLP and
output embedding, and the two of causal attention (half of the square); the backward pass is twice
the forward pass. What a positional scheme adds is not counted, so rates compare across schemes.
"""

from posbench.settings import ModelConfig


def mlp_width(config: ModelConfig) -> int:
    """Hidden width: 8/3 D rounded up to a multiple of 128 (llama), 4 D (gpt2), or as given."""
    if config.hidden is not None:
        return config.hidden
    if config.style == "gpt2":
        return 4 * config.d_model
    return -(-8 * config.d_model // (3 * 128)) * 128


def forward(config: ModelConfig, vocab_size: int, length: int) -> float:
    """Operations of a forward pass over one sequence of `length` tokens."""
    width, layers = config.d_model, config.n_layers
    mlp = (2 if config.style == "gpt2" else 3) * mlp_width(config)
    weights = layers * width * (4 * width + mlp) + width * vocab_size
    attention = layers * 2 * width * (length + 1) / 2
    return 2 * length * (weights + attention)


def training(config: ModelConfig, vocab_size: int, length: int, sequences: float) -> float:
    """Operations of forward and backward passes over `sequences` sequences."""
    return 3 * sequences * forward(config, vocab_size, length)


def vocabulary(tokenizer: str) -> int:
    """Tokens of a tokenizer of this name; of data without one, about as many."""
    return int(tokenizer.removeprefix("bpe")) if tokenizer.startswith("bpe") else 256
