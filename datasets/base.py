"""What every source of graphs has in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnn_dist.errors import DatasetError, GraphError
from gnn_dist.graph import Graph

__all__ = ["DatasetInfo", "Source", "naming", "need_root"]


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known about a dataset before it is loaded.

    Attributes:
        name: The registered name.
        source: Where the data come from.
        num_nodes: N.
        num_edges: E, directed edges as loaded (an undirected edge counts twice); None where it
            depends on the seed.
        num_features: F.
        num_classes: C.
        task: `multiclass` or `multilabel`.
        metric: The customary metric: `accuracy`, `micro-f1` or `roc-auc`.
        licence: Of the data; "not stated" where the authors name none.
        obtained: How the data reach this machine.
        options: The options that may follow the name, with their defaults.

    Example:
        >>> from gnn_dist.datasets import list_datasets
        >>> next(info.num_nodes for info in list_datasets() if info.name == "cora")
        2708
    """

    name: str
    source: str
    num_nodes: int
    num_edges: int | None
    num_features: int
    num_classes: int
    licence: str
    obtained: str
    task: str = "multiclass"
    metric: str = "accuracy"
    options: str = ""


class Source(Protocol):
    """One dataset, or one family of synthetic graphs: a frozen dataclass with these members."""

    @property
    def info(self) -> DatasetInfo:
        """What is known without loading."""
        ...

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Load, download or generate the graph.

        Args:
            root: Folder of datasets; None when there is none.
            seed: Seed of synthetic graphs; others ignore it.
            directed: Keep one-way edges where the data have them and symmetrising is customary.

        Raises:
            DatasetError: The data are absent or damaged; the message says what to do.
        """
        ...


def need_root(root: Path | None, name: str, files: str) -> Path:
    """Return the root folder of a dataset that cannot do without one.

    Args:
        root: The folder, if any was given.
        name: The dataset, for the message.
        files: What the folder is to hold, for the message.

    Raises:
        DatasetError: No folder was given.
    """
    if root is None:
        raise DatasetError(
            f"{name} needs a folder of datasets, got none: pass --root (or set GNN_DIST_DATA) to "
            f"a folder that holds {files}, or that downloads may go to"
        )
    return root


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Put a place (a file, a folder) in front of what is wrong with a graph read from it.

    Raises:
        DatasetError: Instead of a `GraphError` from the body.
    """
    try:
        yield
    except GraphError as error:
        raise DatasetError(f"{where}: {error}") from error
