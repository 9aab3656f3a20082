"""What every command is, and what it knows beside its own options."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Command", "Environment"]


@dataclass(frozen=True)
class Environment:
    """What a command knows beside its own options.

    Attributes:
        root: `GNN_DIST_DATA`, where datasets lie when `--root` does not say.
        default_dataset: The dataset that a YAML file names.
    """

    root: str | None
    default_dataset: str = ""


class Command(Protocol):
    """A parsed command."""

    def run(self, environment: Environment) -> int:
        """Do it; return the exit code."""
