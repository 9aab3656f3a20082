"""One parser for three ways to give an option: `--hidden 64`, `hidden=64`, and YAML.

`key=value` words and the mapping of `--config` are turned into flags, so that the parser built from
the dataclasses checks all of them alike. Later ones win: YAML, then the command line in its order.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gnn_dist.errors import ConfigError

__all__ = ["as_flags", "expand_arguments", "load_yaml"]

BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def expand_arguments(words: Sequence[str], types: Mapping[str, object]) -> tuple[list[str], str]:
    """Turn `--config` and `key=value` of a command line into flags.

    Args:
        words: A command line, the command's name first.
        types: The type of each option that exists, by name with underscores.

    Returns:
        The words with flags only, and the dataset that a YAML file names ("" if none does): the
        one argument that has no flag.

    Raises:
        ConfigError: `--config` names no file, the file holds no mapping of options, or a yes-or-no
            option has another value.
    """
    from_files: dict[str, Any] = {}
    flags: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name == "--config":
            if not equals and not rest:
                raise ConfigError("--config must be followed by a YAML file")
            from_files.update(load_yaml(value if equals else rest.pop(0)))
        elif equals and name in types:
            flags += as_flags({name: value}, types)
        else:
            flags.append(word)
            if rest and _takes_value(word, types):
                flags.append(rest.pop(0))  # whatever it looks like
    dataset = str(from_files.pop("dataset", None) or "")
    return [*words[:1], *as_flags(from_files, types), *flags], dataset


def as_flags(values: Mapping[str, object], types: Mapping[str, object]) -> list[str]:
    """Return a mapping of options as words of a command line.

    Raises:
        ConfigError: A yes-or-no option has another value.
    """
    flags = []
    for key, value in values.items():
        name = key.replace("_", "-")
        if types.get(key) is bool:
            if str(value).lower() not in BOOLEANS:
                raise ConfigError(f"{key} must be true or false, got {value}")
            flags.append(f"--{name}" if BOOLEANS[str(value).lower()] else f"--no-{name}")
        else:
            flags += [f"--{name}", "" if value is None else str(value)]
    return flags


def _takes_value(word: str, types: Mapping[str, object]) -> bool:
    name = word.removeprefix("--").replace("-", "_")
    return word.startswith("--") and name in types and types[name] is not bool


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of options.

    Raises:
        ConfigError: There is no such file, it is no YAML, or no mapping.
    """
    try:
        values = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must hold a mapping of options, got {type(values).__name__}")
    for key, value in values.items():
        if isinstance(value, list) and not any(isinstance(v, dict | list) for v in value):
            values[key] = ",".join(map(str, value))  # as on the command line
        elif isinstance(value, dict | list):
            raise ConfigError(f"{path}: {key} must be one value, got {value}")
    return values
