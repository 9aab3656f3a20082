"""Datasets that PyG downloads and prepares, and the one place that calls its downloaders.

The downloads themselves are not covered by tests (those run without a network); reading what a
download leaves, and every failure, is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_dist.datasets.base import DatasetInfo, naming, need_root
from gnn_dist.errors import DatasetError
from gnn_dist.graph import Graph
from gnn_dist.interop import graph_from_pyg

__all__ = ["SOURCES", "PyGDownload", "download"]

REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")
SAINT_FILES = ("adj_full.npz", "feats.npy", "class_map.json", "role.json")


@dataclass(frozen=True)
class PyGDownload:
    """A dataset class of PyG, kept in a folder of its own under the root.

    Attributes:
        info: What is known about it.
        dataset: Class in `torch_geometric.datasets`.
        raw_files: The files that the class downloads into `raw/`.
    """

    info: DatasetInfo
    dataset: str
    raw_files: tuple[str, ...]

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Load through PyG, which downloads and prepares on first use.

        Raises:
            DatasetError: The download or the preparation failed.
        """
        root = need_root(root, self.info.name, f"{self.dataset}/raw")
        folder = root / self.dataset
        files = ", ".join(self.raw_files)
        data = download(self.dataset, folder, hint=f"put {files} into {folder / 'raw'}")
        with naming(folder):
            return graph_from_pyg(data, name=self.info.name)


def download(dataset: str, folder: Path, *, hint: str, variant: str | None = None) -> Any:  # noqa: ANN401
    """Return the one graph of a PyG dataset class, downloaded to a folder on first use.

    Args:
        dataset: Class in `torch_geometric.datasets`.
        folder: The class's root.
        hint: What to put where when the download fails.
        variant: The class's `name` argument, if it has one.

    Returns:
        A `torch_geometric.data.Data`.

    Raises:
        DatasetError: Anything failed; the message ends with the hint.
    """
    import torch_geometric.datasets

    loader = getattr(torch_geometric.datasets, dataset)
    options = {} if variant is None else {"name": variant}
    try:
        return loader(str(folder), **options)[0]
    # The errors of downloaders and unpackers are no contract: network, disk, archive and
    # content faults each come in several types.
    except Exception as error:
        raise DatasetError(
            f"PyG could not download or prepare {dataset} in {folder} "
            f"({type(error).__name__}: {error}): {hint}"
        ) from error


def _saint(
    name: str, dataset: str, sizes: tuple[int, int, int, int], *, multilabel: bool = False
) -> PyGDownload:
    num_nodes, num_edges, num_features, num_classes = sizes
    info = DatasetInfo(
        name=name,
        source="Zeng et al. 2020 (GraphSAINT), arXiv 1907.04931",
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=num_features,
        num_classes=num_classes,
        licence="not stated",
        obtained="PyG's download",
        task="multilabel" if multilabel else "multiclass",
        metric="micro-f1" if multilabel else "accuracy",
    )
    return PyGDownload(info, dataset, SAINT_FILES)


SOURCES = (
    PyGDownload(
        DatasetInfo(
            name="reddit",
            source="Hamilton, Ying and Leskovec 2017 (GraphSAGE), arXiv 1706.02216",
            num_nodes=232_965,
            num_edges=114_615_892,
            num_features=602,
            num_classes=41,
            licence="not stated",
            obtained="PyG's download",
        ),
        "Reddit",
        REDDIT_FILES,
    ),
    _saint("flickr", "Flickr", (89_250, 899_756, 500, 7)),
    _saint("yelp", "Yelp", (716_847, 13_954_819, 300, 100), multilabel=True),
    _saint(
        "amazon-products",
        "AmazonProducts",
        (1_569_960, 264_339_468, 200, 107),
        multilabel=True,
    ),
)
