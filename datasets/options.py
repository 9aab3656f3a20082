"""Options of a source, written after its name: `sbm:nodes=1000,blocks=4`.

An option is a dataclass field made by `option`, so that the field's type, default and range are
the only description there is.
"""

from dataclasses import Field, field, fields, replace
from typing import Any

from gnn_dist.datasets.base import Source
from gnn_dist.errors import DatasetError, nearest

__all__ = ["check_options", "configure", "describe_options", "full_name", "option"]

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
KINDS = {int: "an integer", float: "a number", bool: "true or false"}


def option(default: float, low: float = 0, high: float = 0) -> Any:  # noqa: ANN401 - as field()
    """Declare a dataclass field as an option: an int, float or bool by its default.

    Args:
        default: The default value.
        low: Least value allowed; not used for booleans.
        high: Greatest value allowed; not used for booleans.
    """
    return field(default=default, metadata={"range": (low, high)})


def configure(source: Source, name: str, text: str | None) -> Source:
    """Return a source with options set from the part of a name after the colon.

    Args:
        source: The source with its defaults.
        name: What the user calls it, for messages.
        text: `key=value,...`, or None when there was no colon.

    Raises:
        DatasetError: An option is unknown, twice there, or its value is illegal.
    """
    if text is None:
        return source
    known = {f.name: f for f in _options(source)}
    if not known:
        raise DatasetError(f"{name} has no options, got {text!r}: drop the part after the colon")
    values: dict[str, float] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise DatasetError(f"options of {name} must be written key=value, got {item!r}")
        if key not in known:
            raise DatasetError(f"{name} has no option {key!r}: {nearest(key, list(known))}")
        if key in values:
            raise DatasetError(f"option {key!r} of {name} must be given once, got it twice")
        values[key] = _parse(known[key], value, name)
    return replace(source, **values)  # type: ignore[type-var]  # every source is a dataclass


def check_options(source: Source, name: str) -> None:
    """Check type and range of every option.

    Raises:
        DatasetError: A value is illegal; the message names the option and its range.
    """
    for item in _options(source):
        value, kind = getattr(source, item.name), _kind(item)
        low, high = item.metadata["range"]
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise _illegal(item, value, name)
        if kind is not bool and not low <= value <= high:
            raise _illegal(item, value, name)


def describe_options(source: Source) -> str:
    """Return all options with their values, `a=1, b=2`; empty without options."""
    return ", ".join(f"{f.name}={_text(getattr(source, f.name))}" for f in _options(source))


def full_name(source: Source, name: str) -> str:
    """Return the name with the options that differ from their defaults."""
    changed = [f for f in _options(source) if getattr(source, f.name) != f.default]
    suffix = ",".join(f"{f.name}={_text(getattr(source, f.name))}" for f in changed)
    return f"{name}:{suffix}" if suffix else name


def _options(source: Source) -> list[Field[Any]]:
    return [f for f in fields(source) if "range" in f.metadata]  # type: ignore[arg-type]


def _text(value: float) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _kind(item: Field[Any]) -> type:
    kind: type = type(item.default)
    return kind


def _parse(item: Field[Any], text: str, name: str) -> float:
    kind = _kind(item)
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        return int(text) if kind is int else float(text)
    except (KeyError, ValueError):
        raise _illegal(item, text, name) from None


def _illegal(item: Field[Any], value: object, name: str) -> DatasetError:
    kind = _kind(item)
    low, high = item.metadata["range"]
    span = "" if kind is bool else f" in {low}..{high}"
    return DatasetError(
        f"option {item.name!r} of {name} must be {KINDS[kind]}{span}, got {value!r}"
    )
