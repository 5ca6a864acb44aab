"""Measurements of speed: training steps, evaluation by length, start-up."""

#: what `posbench bench` measures, and the word for everything
TRAIN, EVAL, STARTUP, ALL = "train", "eval", "startup", "all"
PARTS = (TRAIN, EVAL, STARTUP)
#: options of an evaluation that it heeds
HEEDED = ("eval.lengths", "eval.threads", "eval.device", "eval.memory_limit")
