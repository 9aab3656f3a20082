"""The graphs of the partitioning benchmark."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

import gnn_dist as gd

# Small ones first, so that an interrupted run has most of its rows.
REAL = (
    "cora",
    "citeseer",
    "minesweeper",
    "cora-ml",
    "dblp",
    "coauthor-cs",
    "amazon-photo",
    "facebook-pages",
    "amazon-computers",
    "coauthor-physics",
    "debian",
    "tolokers",
)
SYNTHETIC = {
    "rmat18": "rmat:scale=18,degree=16,features=1",
    "sbm18": "sbm:nodes=262144,blocks=64,degree_in=16,degree_out=4,features=1",
}
KEPT = ("indptr", "indices", "y", "train_mask", "val_mask", "test_mask")


class Folders(NamedTuple):
    """Where graphs are read from.

    Attributes:
        root: Folder of the datasets.
        cache: Folder that structures are kept in, so that features are read only once.
    """

    root: str | None
    cache: Path


def load(name: str, folders: Folders) -> gd.Graph:
    """Return the structure and masks of a graph above, or of any that `load_dataset` knows."""
    path = folders.cache / f"partition-{name.replace('/', '_')}.npz"
    if not path.exists():
        graph = with_masks(gd.load_dataset(SYNTHETIC.get(name, name), folders.root))
        kept = {field: getattr(graph, field) for field in KEPT}
        folders.cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folders.cache) as own:
            np.savez(Path(own) / "graph.npz", **kept)
            (Path(own) / "graph.npz").rename(path)
    with np.load(path) as arrays:
        return gd.Graph(**arrays, name=name)


def with_masks(graph: gd.Graph) -> gd.Graph:
    """Return the graph; one without a split gets a seeded one, half of it for training."""
    if graph.train_mask is not None:
        return graph
    draw = np.random.default_rng(0).random(graph.num_nodes)
    masks = {"train_mask": draw < 0.5, "val_mask": (draw >= 0.5) & (draw < 0.7)}
    y = np.zeros(graph.num_nodes, np.int64) if graph.y is None else np.maximum(graph.y, 0)
    return graph.replace(y=y, test_mask=draw >= 0.7, **masks)
