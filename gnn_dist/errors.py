"""The error tree.

A message says what was expected, what came, where, and what to do. Errors that are the fault of
the input (`InputError` and below) end a command with exit code 2 and no traceback; all others
with exit code 1.
"""

__all__ = [
    "CommError",
    "ConfigError",
    "DatasetError",
    "GnnDistError",
    "GraphError",
    "InputError",
    "PartitionError",
    "RankError",
    "ShardFormatError",
    "nearest",
]


class GnnDistError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(GnnDistError, ValueError):
    """The input is wrong; nothing was started."""


class GraphError(InputError):
    """A graph's arrays contradict each other or hold illegal values."""


class DatasetError(InputError):
    """A dataset is unknown, absent or damaged."""


class PartitionError(InputError):
    """A partition cannot be made, or does not fit its graph."""


class ShardFormatError(InputError):
    """A partition folder is missing, damaged, or of another format version."""


class ConfigError(InputError):
    """An option has a value that cannot work."""


class CommError(GnnDistError, RuntimeError):
    """Communication could not be set up, or failed."""


class RankError(CommError):
    """Another rank failed, ended or did not answer in time.

    Attributes:
        rank: The rank at fault, or -1 if it is not known.
    """

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


def nearest(name: str, known: list[str]) -> str:
    """Return a sentence end that offers the closest of some known names.

    Args:
        name: What was asked for.
        known: The names that exist.

    Returns:
        `"did you mean 'cora'?"`, or `"known: a, b, c"` when nothing is close.
    """
    import difflib

    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if close:
        original = next(k for k in known if k.lower() == close[0])
        return f"did you mean {original!r}?"
    return "known: " + ", ".join(sorted(known))
