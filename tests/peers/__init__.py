"""What other libraries ship, beside posbench and beside a formula written out: `make peers`.

One file per library holds its probes; each library has an environment of its own, since their pins
exclude each other. `python -m peers` (with `tests` on the path) makes the environments, runs every
file in its own and writes the table; it needs nothing but the standard library itself. Another
peer is a line in `environments.PEERS`, a file here with `PROBES`, and plug-ins in `schemes/`, named
after it, for `posbench check --plugin`.
"""
