"""Benchmark graphs kept as plain `.npz` files under the root folder; the keys are in `arrays.py`.

Four of them (Amazon, Coauthor) can also be had through PyG: the raw file that PyG downloads is
read here, so that features are the same (counts, sparse) whichever way they came.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.datasets.arrays import csr_ends, graph_from_arrays, read_npz
from gnn_dist.datasets.base import DatasetInfo, naming, need_root
from gnn_dist.datasets.pyg_downloads import download
from gnn_dist.errors import DatasetError
from gnn_dist.graph import CSRFeatures, Graph, graph_from_edges

__all__ = ["SOURCES", "NpzGraph", "PyGRaw"]

RAW_KEYS = (
    "adj_indptr", "adj_indices", "attr_indptr", "attr_indices", "attr_data", "attr_shape", "labels",
)  # fmt: skip


@dataclass(frozen=True)
class PyGRaw:
    """Where PyG downloads the raw file of a dataset.

    Attributes:
        dataset: Class in `torch_geometric.datasets`.
        variant: Its `name` argument.
        path: The raw file, relative to the class's root.
    """

    dataset: str
    variant: str
    path: str


@dataclass(frozen=True)
class NpzGraph:
    """One graph in one `.npz` file.

    Attributes:
        info: What is known about it.
        raw: How PyG gets it, where it can.
    """

    info: DatasetInfo
    raw: PyGRaw | None = None

    @property
    def file(self) -> str:
        """Name of the file under the root."""
        return self.info.name.replace("-", "_") + ".npz"

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Read the file; without it, the raw file of PyG, downloaded when it is absent too.

        Raises:
            DatasetError: There is no file and no download, or it is damaged.
        """
        root = need_root(root, self.info.name, self.file)
        path = root / self.file
        if path.exists():
            return graph_from_arrays(read_npz(path), path, name=self.info.name)
        if self.raw is None:
            raise DatasetError(
                f"{self.info.name} must lie at {path}, got no such file: put it there, or point "
                "--root to the folder that holds it"
            )
        raw_path = root / self.raw.path
        if not raw_path.exists():
            download(
                self.raw.dataset,
                root,
                hint=f"put {self.file} into {root}, or PyG's raw file at {raw_path}",
                variant=self.raw.variant,
            )
        return self._read_raw(raw_path)

    def _read_raw(self, path: Path) -> Graph:
        """Read the layout of Shchur et al.: one-way adjacency, symmetrised without self-loops."""
        arrays = read_npz(path, RAW_KEYS)
        missing = [key for key in RAW_KEYS if key not in arrays]
        if missing:
            raise DatasetError(f"{path} must hold the keys {', '.join(missing)}, got none of them")
        with naming(path):
            src, dst = csr_ends(arrays["adj_indptr"], arrays["adj_indices"], path)
            proper = src != dst
            values = arrays["attr_data"]
            x = CSRFeatures(
                arrays["attr_indptr"],
                arrays["attr_indices"],
                None if (values == 1).all() else values.astype(np.float32, copy=False),
                int(arrays["attr_shape"][1]),
            )
            return graph_from_edges(
                src[proper],
                dst[proper],
                num_nodes=len(arrays["adj_indptr"]) - 1,
                symmetrize=True,
                x=x,
                y=arrays["labels"],
                name=self.info.name,
            )


def _npz(
    name: str, sizes: tuple[int, int, int, int], source: str, licence: str, metric: str = "accuracy"
) -> DatasetInfo:
    num_nodes, num_edges, num_features, num_classes = sizes
    return DatasetInfo(
        name=name,
        source=source,
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=num_features,
        num_classes=num_classes,
        licence=licence,
        obtained=f"{name.replace('-', '_')}.npz under the root",
        metric=metric,
    )


def _or_pyg(info: DatasetInfo, dataset: str, variant: str, path: str) -> NpzGraph:
    changes = {**info.__dict__, "obtained": info.obtained + ", else PyG's download"}
    return NpzGraph(DatasetInfo(**changes), PyGRaw(dataset, variant, path))


SHCHUR = "Shchur et al. 2018, arXiv 1811.05868"
BOJCHEVSKI = "Bojchevski and Guennemann 2018, arXiv 1707.03815"
PLATONOV = "Platonov et al. 2023, arXiv 2302.11640; ten official splits"

SOURCES = (
    _or_pyg(
        _npz("amazon-computers", (13_752, 491_722, 767, 10), SHCHUR, "MIT"),
        *("Amazon", "Computers", "Computers/raw/amazon_electronics_computers.npz"),
    ),
    _or_pyg(
        _npz("amazon-photo", (7_650, 238_162, 745, 8), SHCHUR, "MIT"),
        *("Amazon", "Photo", "Photo/raw/amazon_electronics_photo.npz"),
    ),
    _or_pyg(
        _npz("coauthor-cs", (18_333, 163_788, 6_805, 15), SHCHUR, "MIT"),
        *("Coauthor", "CS", "CS/raw/ms_academic_cs.npz"),
    ),
    _or_pyg(
        _npz("coauthor-physics", (34_493, 495_924, 8_415, 5), SHCHUR, "MIT"),
        *("Coauthor", "Physics", "Physics/raw/ms_academic_phy.npz"),
    ),
    NpzGraph(_npz("cora-ml", (2_995, 16_316, 2_879, 7), BOJCHEVSKI, "MIT")),
    NpzGraph(_npz("dblp", (17_716, 105_734, 1_639, 4), BOJCHEVSKI, "MIT")),
    NpzGraph(
        _npz(
            "facebook-pages",
            (22_470, 341_646, 4_714, 4),
            "Rozemberczki et al. 2019, arXiv 1909.13021",
            "GPL-3.0 (repository), MIT (the author's data list)",
        )
    ),
    NpzGraph(_npz("tolokers", (11_758, 1_038_000, 10, 2), PLATONOV, "MIT", "roc-auc")),
    NpzGraph(_npz("minesweeper", (10_000, 78_804, 7, 2), PLATONOV, "MIT", "roc-auc")),
)
