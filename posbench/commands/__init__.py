"""The commands, by what they are about; `posbench.cli` puts them together."""
