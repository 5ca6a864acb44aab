"""Hydra configs of posbench; they ship as the package `posbench.conf`."""
