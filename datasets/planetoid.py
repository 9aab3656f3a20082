"""Cora, CiteSeer and PubMed with the public split, from Planetoid's raw files.

The raw files are pickles of Python 2 and are read by PyG's reader: take them from a source you
trust. Nothing is written when they are there, so the root may be read-only.
"""

import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path

from gnn_dist.datasets.arrays import csr_from_dense
from gnn_dist.datasets.base import DatasetInfo, naming, need_root
from gnn_dist.datasets.pyg_downloads import download
from gnn_dist.errors import DatasetError
from gnn_dist.graph import Graph
from gnn_dist.interop import graph_from_pyg

__all__ = ["SOURCES", "Planetoid"]

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
PARENTS = ("planetoid", "", "Planetoid")  # relative to the root, in the order of search


@dataclass(frozen=True)
class Planetoid:
    """One of the three citation graphs.

    Attributes:
        info: What is known about it.
        title: Its name as Planetoid and PyG spell it.
        num_test: Nodes of the public test set.
    """

    info: DatasetInfo
    title: str
    num_test: int = 1000

    @property
    def raw_files(self) -> tuple[str, ...]:
        """Names of the raw files."""
        return tuple(f"ind.{self.title.lower()}.{part}" for part in PARTS)

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Read the raw files, downloaded by PyG when there is no folder of them.

        Raises:
            DatasetError: Files are missing or damaged, or the download failed.
        """
        root = need_root(root, self.info.name, f"planetoid/{self.title}/raw")
        folders = [root / parent / self.title / "raw" for parent in PARENTS]
        folder = next((f for f in folders if f.is_dir()), None)
        if folder is None:
            folder = folders[0]
            hint = f"put {', '.join(self.raw_files)} into {folder}"
            download("Planetoid", root / PARENTS[0], hint=hint, variant=self.title)
        missing = [name for name in self.raw_files if not (folder / name).is_file()]
        if missing:
            raise DatasetError(f"{folder} must hold {', '.join(missing)}: put them there")
        return self._read(folder)

    def _read(self, folder: Path) -> Graph:
        from torch_geometric.io import read_planetoid_data

        try:
            with warnings.catch_warnings():  # old pickles name deprecated modules
                warnings.simplefilter("ignore")
                data = read_planetoid_data(str(folder), self.title)
        # What a damaged pickle raises is open-ended; these are what truncation and edits gave.
        except (
            *(pickle.UnpicklingError, EOFError, OSError, ValueError, IndexError),
            *(AttributeError, ImportError, KeyError, TypeError, RuntimeError),
        ) as error:
            raise DatasetError(
                f"{folder} must hold readable Planetoid files, got {type(error).__name__}: "
                f"{error}: download them again"
            ) from error
        with naming(folder):
            graph = graph_from_pyg(data, name=self.info.name)
        # PyG's reader takes a list of test nodes that was cut short, and mixes up rows.
        found, listed = int(data.test_mask.sum()), (self.info.num_nodes, self.num_test)
        if (graph.num_nodes, found) != listed:
            raise DatasetError(
                f"{folder} must hold {listed[0]} nodes and {listed[1]} test nodes, got "
                f"{graph.num_nodes} and {found}: download the files again"
            )
        return graph.replace(x=csr_from_dense(data.x.numpy()))


def _planetoid(
    title: str, num_nodes: int, num_edges: int, num_features: int, num_classes: int
) -> Planetoid:
    info = DatasetInfo(
        name=title.lower(),
        source="Yang, Cohen and Salakhutdinov 2016, arXiv 1603.08861; public split",
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=num_features,
        num_classes=num_classes,
        licence="MIT",
        obtained=f"planetoid/{title}/raw under the root, else PyG's download",
    )
    return Planetoid(info, title)


SOURCES = (
    _planetoid("Cora", 2_708, 10_556, 1_433, 7),
    _planetoid("CiteSeer", 3_327, 9_104, 3_703, 6),
    _planetoid("PubMed", 19_717, 88_648, 500, 3),
)
