"""Checking plain values, as JSON gives them, against the annotations of a dataclass."""

import math
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["check_record", "fits"]

INT64_LIMIT = 1 << 63


def check_record(values: object, kind: type, name: str) -> None:
    """Check that a table has every field of a dataclass, of the annotated type.

    Args:
        values: What was read.
        kind: The dataclass.
        name: Of the table, for messages.

    Raises:
        ValueError: It is no table, or a field is missing or of another type.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be a table, got {values!r}")
    hints = get_type_hints(kind)
    missing = hints.keys() - values.keys()
    if missing:
        raise ValueError(f"{name} lacks {', '.join(sorted(missing))}")
    for field, annotation in hints.items():
        if not fits(values[field], annotation):
            raise ValueError(f"{name}: {field} must be {_said(annotation)}, got {values[field]!r}")


def fits(value: object, annotation: Any) -> bool:  # noqa: ANN401 - a type of any kind
    """Return whether a value is of an annotated type; integers fit int64, floats are finite.

    Example:
        >>> fits([1, 2], list[int]), fits([1, None], list[int]), fits(None, int | None)
        (True, False, True)
    """
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, inner[0]) and fits(item, inner[1]) for key, item in value.items()
        )
    if annotation in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | annotation):
            return False
        return math.isfinite(value) and abs(value) < (INT64_LIMIT if annotation is int else 1e300)
    return isinstance(value, annotation)


def _said(annotation: Any) -> str:  # noqa: ANN401
    return (
        annotation.__name__
        if isinstance(annotation, type) and not get_args(annotation)
        else str(annotation).replace("typing.", "")
    )
