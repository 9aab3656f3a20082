"""Node datasets of the Open Graph Benchmark, through its package `ogb` (an extra).

Two habits of that package are handled here. It asks questions on the terminal (before downloads
above 1 GB, and when it finds another release): without a terminal this is an error that says what
to do, not a wait for an answer. And it reads its own cache, a pickle of NumPy arrays, by a plain
`torch.load`, which has refused such files since torch 2.6: the cache is read here instead, by an
unpickler that builds arrays and tensors and nothing else.

Tested against stand-ins for the package and for its files; the downloads and the real files are
not covered by tests.
"""

import contextlib
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import read_npz
from gnn_dist.datasets.base import DatasetInfo, naming, need_root
from gnn_dist.errors import DatasetError
from gnn_dist.graph import Graph, graph_from_edges

__all__ = ["SOURCES", "OgbNodes"]

Array = NDArray[Any]

INSTALL = "pip install gnn-dist[ogb]"
# NumPy 1 and 2 name the same constructors differently.
NUMPY_MODULES = ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
NUMPY_NAMES: Mapping[str, Any] = {
    "_reconstruct": np.zeros(0).__reduce__()[0],
    "scalar": np.float64(0).__reduce__()[0],
    "ndarray": np.ndarray,
    "dtype": np.dtype,
}
TORCH_NAMES = (
    ("torch._utils", "_rebuild_tensor_v2"),
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),  # bytes in old protocols
)
RELEASE = "RELEASE_v1.txt"
RAW_ARRAYS, CACHE = "raw/data.npz", "processed/data_processed"
HELD = (RAW_ARRAYS, CACHE, "raw/edge.csv.gz")  # any of these saves the download
SPLITS = {"train_mask": "train", "val_mask": "valid", "test_mask": "test"}


@dataclass(frozen=True)
class OgbNodes:
    """A node classification dataset with its official split.

    Memory: edges (int64) and features are held once, and `Graph` shares the features. Building the
    structure takes 21 bytes more per stored edge, 84 when symmetrised (measured on 2 million
    edges): for papers100M, where features take 57 GB, about 120 GB or 220 GB in all (computed).
    Its raw file is read in place of the package's cache, which would be held twice.

    Attributes:
        info: What is known about it.
        one_way: Whether each edge is stored in one direction, and so symmetrised by custom.
        asks: Whether the package asks before the download.
    """

    info: DatasetInfo
    one_way: bool
    asks: bool

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Load through the package, which downloads and prepares on first use.

        Raises:
            DatasetError: The package is absent, would ask a question without a terminal, or failed.
        """
        root = need_root(root, self.info.name, self._folder_name)
        loader = _import_loader()
        folder = root / self._folder_name
        self._refuse_questions(folder)
        try:
            # The package reports on stdout, which belongs to the output of commands.
            with contextlib.redirect_stdout(sys.stderr):
                dataset = loader(name=self.info.name, root=str(root))
                split = dataset.get_idx_split()
        # SystemExit is how the package ends after a declined download; the rest of what it may
        # raise is no contract.
        except (Exception, SystemExit) as error:
            raise DatasetError(
                f"ogb could not load {self.info.name} in {folder} ({type(error).__name__}: "
                f"{error}): unpack its archive so that {folder} holds raw/, split/ and mapping/, "
                "or run once in a terminal with a network"
            ) from error
        parts, labels = dataset[0]
        with naming(folder):
            return self._build(parts, labels, split, directed=directed)

    @property
    def _folder_name(self) -> str:
        return self.info.name.replace("-", "_")

    def _refuse_questions(self, folder: Path) -> None:
        if sys.stdin is not None and sys.stdin.isatty():
            return
        if folder.is_dir() and not (folder / RELEASE).is_file():
            raise DatasetError(
                f"{folder} must hold ogb's {RELEASE}, got none, and ogb would ask whether to "
                "download again: put the file there, or run once in a terminal"
            )
        if self.asks and not any((folder / file).is_file() for file in HELD):
            raise DatasetError(
                f"{self.info.name} is not in {folder}, and ogb asks before so large a download: "
                f'run `python -c "from ogb.nodeproppred import NodePropPredDataset as D; '
                f"D('{self.info.name}', '{folder.parent}')\"` once in a terminal, or unpack its "
                "archive there"
            )

    def _build(
        self, parts: dict[str, Any], labels: Array, split: dict[str, Any], *, directed: bool
    ) -> Graph:
        num_nodes = int(parts["num_nodes"])
        src, dst = parts.pop("edge_index")
        fields = {mask: _as_mask(split[key], num_nodes) for mask, key in SPLITS.items()}
        return graph_from_edges(
            src,
            dst,
            num_nodes=num_nodes,
            symmetrize=self.one_way and not directed,
            x=parts.pop("node_feat"),
            y=labels,  # (N, 1), NaN for none: Graph takes both
            num_classes=self.info.num_classes,
            name=self.info.name,
            **fields,
        )


def _import_loader() -> Any:  # noqa: ANN401 - a class of an optional package
    """Return ogb's dataset class, with the reading of its cache replaced."""
    try:
        from ogb.nodeproppred import NodePropPredDataset
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"datasets of the Open Graph Benchmark need the package ogb, got no module "
            f"{error.name!r}: {INSTALL}"
        ) from error

    class Loader(NodePropPredDataset):  # type: ignore[misc]  # the package has no types
        def pre_process(self) -> None:
            raw, cache = (Path(self.root, file) for file in (RAW_ARRAYS, CACHE))
            if raw.is_file():
                self.graph, self.labels = _read_raw(raw)
            elif cache.is_file():
                held = read_cache(cache)
                self.graph, self.labels = held["graph"], held["labels"]
            else:
                super().pre_process()

        def get_idx_split(self) -> dict[str, Any]:
            cache = Path(self.root, "split", self.meta_info["split"], "split_dict.pt")
            split: dict[str, Any] = (
                read_cache(cache) if cache.is_file() else super().get_idx_split()
            )
            return split

    return Loader


def _read_raw(path: Path) -> tuple[dict[str, Any], Array]:
    """Read the binary layout, that of papers100M, as the package returns it."""
    arrays = read_npz(path, ("edge_index", "node_feat", "num_nodes_list"))
    labels = read_npz(path.with_name("node-label.npz"), ("node_label",))["node_label"]
    return {**arrays, "num_nodes": arrays["num_nodes_list"].item()}, labels


def read_cache(path: Path) -> dict[str, Any]:
    """Read arrays and tensors that `torch.save` wrote, by whichever pickle protocol.

    Raises:
        pickle.UnpicklingError: The file holds something else.
    """
    import torch

    # The unpickler is as strict as weights_only, which does not know protocol 4.
    held: dict[str, Any] = torch.load(path, pickle_module=_ArrayPickle, weights_only=False)
    return held


class _ArrayPickle:
    """What `torch.load` needs of a pickle module."""

    class Unpickler(pickle.Unpickler):
        """An unpickler that knows the constructors of arrays and tensors only."""

        def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - overrides
            if module in NUMPY_MODULES and name in NUMPY_NAMES:
                return NUMPY_NAMES[name]
            if (module, name) in TORCH_NAMES or (module == "torch" and name.endswith("Storage")):
                return super().find_class(module, name)
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")


def _as_mask(index: Array, num_nodes: int) -> Array:
    mask = np.zeros(num_nodes, bool)
    mask[np.asarray(index)] = True
    return mask


def _ogb(
    name: str, sizes: tuple[int, int, int, int], licence: str, *, one_way: bool, asks: bool
) -> OgbNodes:
    num_nodes, num_edges, num_features, num_classes = sizes
    info = DatasetInfo(
        name=name,
        source="Hu et al. 2020 (OGB), arXiv 2005.00687; official split",
        num_nodes=num_nodes,
        num_edges=num_edges,
        num_features=num_features,
        num_classes=num_classes,
        licence=licence,
        obtained=f"the package ogb ({INSTALL}), which downloads",
    )
    return OgbNodes(info, one_way, asks)


SOURCES = (
    _ogb("ogbn-arxiv", (169_343, 2_315_598, 128, 40), "ODC-BY", one_way=True, asks=False),
    _ogb("ogbn-products", (2_449_029, 123_718_280, 100, 47), "Amazon", one_way=False, asks=True),
    _ogb(
        "ogbn-papers100M", (111_059_956, 3_228_124_712, 128, 172), "ODC-BY", one_way=True, asks=True
    ),
)
