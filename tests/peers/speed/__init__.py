"""Speed beside other libraries: `make bench-peers`, or `python -m peers.speed`.

Every contestant is a process in its own environment and does steps of its work when told to
(`workers`), so that all are measured in every round. A file per library builds its
model as its users do (`start`, `scorer`); `loop` turns that into steps, `measure` takes turns,
`report` writes the tables. Only `ours` imports posbench; this side needs the standard library.
"""
