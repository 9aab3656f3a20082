"""What every command is, what it knows beside its own options, and options that ranks get."""

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Command", "Environment", "InferOptions"]


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


@dataclass(frozen=True)
class InferOptions:
    """Where the command `infer` writes to, and how; see the command."""

    out: str
    format: Literal["npy", "parquet"]
    embeddings: bool
    overwrite: bool
    batch_size: int
    halo_memory: str
    work: str
