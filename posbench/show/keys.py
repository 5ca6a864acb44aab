"""Keys that `posbench show` takes for every name. The shell completes them, so no torch here."""

from dataclasses import dataclass

#: groups whose names can be shown; a name in several means the first
GROUPS = ("posenc", "rescale", "positions")
#: what a rescaling is shown on; with the key `rotary_fraction`, the variant that has it
ROTARY, PARTIAL, FRACTION = "rope", "partial_rope", "rotary_fraction"
#: types of the model that the tables are for
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclass
class Keys:
    """null = a default that follows from the others."""

    #: 8
    heads: int | None = None
    #: 64
    head_dim: int | None = None
    #: heads times head_dim
    d_model: int | None = None
    layers: int = 4
    #: the layer that is shown
    layer: int = 0
    #: L; 2048, or 16 where a rescaling maps positions
    train_length: int | None = None
    #: factor times L, or 4 L
    test_length: int | None = None
    #: extents of a picture or clip, such as 16x16 or 4x16x16; text, or 16x16 where a scheme takes
    #: none
    shape: str | None = None
    #: factor times each extent, or 4 times
    test_shape: str | None = None
    #: test_length / train_length, and a rescaling's own option of that name
    factor: int | float | str | None = None
    #: query minus key, for biases and buckets
    distances: list[int] | None = None
    #: for embeddings, factors on the scores, rotations, and the query of a bias (the last one)
    positions: list[int] | None = None
    #: of initial values and of positions that are drawn
    seed: int = 0
    dtype: str = "float64"
    #: the scheme that a rescaling is applied to; rope
    posenc: str | None = None
