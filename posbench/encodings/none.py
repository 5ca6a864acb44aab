"""No positional encoding."""

from posbench.encodings.base import PositionalEncoding
from posbench.registry import register


@register
class NoPositions(PositionalEncoding):
    """NoPE: nothing is added; order enters through the causal mask alone.

    Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    family = "none"
    paper = "arXiv:2305.19466"
    axes = (1, 2, 3)
