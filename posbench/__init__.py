"""posbench: an experiment harness for length extrapolation of positional encodings."""

__version__ = "0.1.0"
