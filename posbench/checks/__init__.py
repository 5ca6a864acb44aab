"""The contract that every scheme, rescaling and position sampler must pass.

`posbench check` prints it, `contract` makes tests of it. A check is a function in one of the files
here; what it shows is its docstring's first line.
"""

import importlib

from posbench.checks.testing import contract

#: the files with checks, in the order in which they run
FILES = (
    "configs",
    "state",
    "attention",
    "grids",
    "gradients",
    "tables",
    "reductions",
    "rescalings",
    "precision",
    "samplers",
)
for _file in FILES:
    importlib.import_module(f"{__name__}.{_file}")

__all__ = ["contract"]
