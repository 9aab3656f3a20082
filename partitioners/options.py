"""Checks of option values. Each returns a plain Python value, fit for JSON."""

from operator import index

from gnn_dist.errors import PartitionError

__all__ = ["check_choice", "check_flag", "check_integer", "check_number"]


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return one of some words.

    Raises:
        PartitionError: The value is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(repr(c) for c in choices)
        raise PartitionError(f"{name} must be {expected}, got {value!r}")
    return value


def check_flag(name: str, value: object) -> bool:
    """Return True or False. Nothing else is taken, since any text would count as True.

    Raises:
        PartitionError: The value is neither.
    """
    if not isinstance(value, bool):
        raise PartitionError(f"{name} must be true or false, got {value!r}")
    return value


def check_integer(name: str, value: object, low: int, high: int) -> int:
    """Return an integer in low..high; NumPy's integers are taken, booleans and floats are not.

    Raises:
        PartitionError: The value is no such integer.
    """
    expected = f"{name} must be an integer in {low}..{high}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise PartitionError(f"{expected}, got {value!r}")
    number = index(value)
    if not low <= number <= high:
        raise PartitionError(f"{expected}, got {number}")
    return number


def check_number(name: str, value: object, low: float, high: float) -> float:
    """Return a float between two limits, both allowed.

    Raises:
        PartitionError: The value is no number between them.
    """
    expected = f"{name} must be a number between {low} and {high}"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise PartitionError(f"{expected}, got {value!r}")
    number = float(value)
    if not low <= number <= high:  # also refuses NaN
        raise PartitionError(f"{expected}, got {number}")
    return number
