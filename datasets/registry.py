"""The registry: which names there are, and how a name or a path finds its source."""

import os
from pathlib import Path

from gnn_dist.datasets import debian, npz_graphs, ogb_nodes, planetoid, pyg_downloads
from gnn_dist.datasets.base import DatasetInfo, Source
from gnn_dist.datasets.grid import Grid
from gnn_dist.datasets.options import configure
from gnn_dist.datasets.rmat import Rmat
from gnn_dist.datasets.sbm import Sbm
from gnn_dist.datasets.user import USER_SUFFIXES, UserData
from gnn_dist.errors import DatasetError, nearest
from gnn_dist.graph import Graph

__all__ = ["list_datasets", "load_dataset"]

SOURCES: tuple[Source, ...] = (
    *planetoid.SOURCES,
    *npz_graphs.SOURCES,
    debian.Debian(),
    *pyg_downloads.SOURCES,
    *ogb_nodes.SOURCES,
    Sbm(),
    Rmat(),
    Grid(),
)


def load_dataset(
    name: str, root: str | Path | None = None, *, seed: int = 0, directed: bool = False
) -> Graph:
    """Load a dataset by name, or user data by path.

    Args:
        name: A registered name, without regard to case, `-` and `_`, or a path (see `user.py` for
            the layouts). Options may follow: `sbm:nodes=1000,blocks=4`,
            `edges.csv:num_nodes=100`. A name that is also a path means the registered dataset;
            write `./name` for the path.
        root: Folder of datasets: what is there is read, what is not is downloaded there. Synthetic
            graphs and user data need none.
        seed: Seed of synthetic graphs.
        directed: Keep the direction of edges in those datasets that have it and are by custom
            symmetrised (`debian`, `ogbn-arxiv`, `ogbn-papers100M`, `rmat`). All others are loaded
            as stored, and user data are never symmetrised unless `symmetric=true` follows the
            path.

    Returns:
        The graph. Masks are None where the data have no split.

    Raises:
        DatasetError: The name is unknown, or the data are absent or damaged.

    Example:
        >>> load_dataset("grid:rows=2,cols=3").num_edges
        14
    """
    folder = None if root is None else Path(root).expanduser()
    if seed < 0:
        raise DatasetError(f"seed must be at least 0, got {seed}")
    return _find(name).load(folder, seed=seed, directed=directed)


def list_datasets() -> list[DatasetInfo]:
    """Return what can be loaded by name, in the registry's order."""
    return [source.info for source in SOURCES]


def _find(name: str) -> Source:
    base, text = _split(name)
    for source in SOURCES:
        if _key(source.info.name) == _key(base):
            return configure(source, source.info.name, text)
    path = Path(base).expanduser()
    if path.exists():
        return configure(UserData(path), base, text)
    if os.sep in base or path.suffix.lower() in USER_SUFFIXES:
        raise DatasetError(f"no file or folder {base!r}: check the path")
    raise DatasetError(
        f"unknown dataset {base!r}: {nearest(base, [s.info.name for s in SOURCES])} "
        "(`gnn-dist datasets` lists all; a path loads your own data)"
    )


def _split(name: str) -> tuple[str, str | None]:
    """Split options from a name; a colon inside an existing path is part of the path."""
    base, colon, text = name.rpartition(":")
    if not colon or os.sep in text or Path(name).expanduser().exists():
        return name, None
    return base, text


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
