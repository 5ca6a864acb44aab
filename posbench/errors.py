"""Errors that a user can mend: one clear line each, and the exit code of the command."""


class PosbenchError(Exception):
    """Base of every error with a message meant for the user; the command prints it and exits."""

    exit_code = 2


class ConfigError(PosbenchError):
    """An option is unknown, has a wrong value, or contradicts another one."""


class NotWritable(ConfigError, OSError):
    """A file or its folder cannot be written."""


class UnsupportedRescale(ConfigError):
    """A rescaling has nothing to change here; a sweep keeps it as a row."""


class NotRescalable(UnsupportedRescale):
    """The rescaling acts on something that the scheme does not have; another part may have it."""


class DataError(PosbenchError):
    """A corpus, tokenizer or targets file is missing, damaged, too small or not the right one."""


class RunError(PosbenchError):
    """A folder is not a run, the run never finished, or its files are damaged."""


class TrainingFailed(PosbenchError):
    """A run started and did not reach its end (a loss that is not finite, for instance)."""

    exit_code = 1
