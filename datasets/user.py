"""The user's own data, by path.

    edges.csv | .tsv | .parquet | .npy   an edge list (`edge_files.py`): structure, maybe weights
    graph.npz                            structure and everything else in one (`arrays.py`)
    graph.pt                             a saved `torch_geometric.data.Data`
    folder/                              `edges.csv` (or another edge list) and files beside it

Files beside an edge list give the other fields of the graph, one each:

    field        in a folder, beside edges.*       for a path such as data/cites.csv
    x            x.npy features.npy x.npz (CSR)    data/cites.x.npy data/cites.features.npy ...
    y            y.npy labels.npy                  data/cites.y.npy data/cites.labels.npy
    others       train_mask.npy edge_weight.npy    data/cites.train_mask.npy ...
                 ... as in `arrays.py`

So a folder names its files freely because all of it is the dataset, and the path of a file takes
only what carries that file's name: nothing unrelated is read. Edges stay as they are listed
(direction, repeats, self-loops) unless `symmetric=true` follows the path. N comes from
`num_nodes=...` after the path, else from features, labels or masks, else from the largest id.
`regression=true` after it says that y are numbers to predict, (N,) or (N, T), NaN for none.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import (
    FIELD_KEYS,
    GRAPH_KEYS,
    graph_fields_from_arrays,
    graph_from_arrays,
    npz_keys,
    read_npy,
    read_npz,
)
from gnn_dist.datasets.base import DatasetInfo, naming
from gnn_dist.datasets.edge_files import EDGE_SUFFIXES, EdgeList, read_edges
from gnn_dist.datasets.options import check_options, option
from gnn_dist.errors import DatasetError
from gnn_dist.graph import EDGE_NAMES, INT32_LIMIT, Graph, graph_from_edges
from gnn_dist.interop import graph_from_pyg

__all__ = ["USER_SUFFIXES", "UserData", "files_beside"]

Array = NDArray[Any]

USER_SUFFIXES = (*EDGE_SUFFIXES, ".npz", ".pt")
ALIASES = {"features": "x", "labels": "y"}
# Fewer edges per node than this look like ids that were never numbered from 0.
MAX_NODES_PER_EDGE = 64
INT64_MAX = np.iinfo(np.int64).max

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UserData:
    """A path to data of the user's own.

    Attributes:
        path: The file or folder.
        num_nodes: N; 0 to find it from the data.
        symmetric: Add the reverse of every edge and drop repeats.
        regression: Whether y are numbers to predict.

    Raises:
        DatasetError: An option is out of its range.
    """

    path: Path
    num_nodes: int = option(0, 0, INT32_LIMIT - 1)
    symmetric: bool = option(False)
    regression: bool = option(False)

    def __post_init__(self) -> None:
        check_options(self, str(self.path))

    @property
    def info(self) -> DatasetInfo:
        """What is known without loading: the path only."""
        return DatasetInfo(
            name=self.path.stem,
            source=str(self.path),
            num_nodes=self.num_nodes,
            num_edges=None,
            num_features=0,
            num_classes=0,
            licence="not stated",
            obtained="user data",
        )

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Read the data; the root is not used.

        Raises:
            DatasetError: The data are damaged or contradict each other; the message names file,
                place and value.
        """
        graph = self._read()
        return _symmetrized(graph) if self.symmetric else graph

    def _read(self) -> Graph:
        if self.path.is_dir():
            edges = _edge_file(self.path)
            return self._read_edge_list(edges, files_beside(edges, prefix=""))
        suffix = self.path.suffix.lower()
        if suffix in EDGE_SUFFIXES:
            beside = files_beside(self.path, prefix=f"{self.path.stem}.")
            return self._read_edge_list(self.path, beside)
        if suffix == ".npz":
            return self._read_archive()
        if suffix == ".pt":
            return self._read_pyg()
        raise DatasetError(
            f"{self.path} must be a folder or end in one of {', '.join(USER_SUFFIXES)}"
        )

    def _read_edge_list(self, path: Path, beside: dict[str, Path]) -> Graph:
        edges = read_edges(path)
        fields = _read_fields(beside)
        if edges.weight is not None:
            if "edge_weight" in fields:
                raise DatasetError(
                    f"{path} must have weights or {beside['edge_weight'].name}, got both"
                )
            _check_weights(edges, path)
            fields["edge_weight"] = edges.weight
        num_nodes = self.num_nodes or _count_nodes(fields)
        if num_nodes is None and len(edges.src) == 0:
            raise DatasetError(f"{path} must hold edges, got none, and nothing else tells N")
        _check_ends(edges, path, num_nodes)
        with naming(self.path):
            return graph_from_edges(
                edges.src, edges.dst, num_nodes=num_nodes, **self._labelling, **fields
            )

    def _read_archive(self) -> Graph:
        unknown = [key for key in npz_keys(self.path) if key not in GRAPH_KEYS]
        if unknown:
            log.warning("%s: keys not read: %s", self.path, ", ".join(unknown))
        arrays = read_npz(self.path)
        if self.num_nodes:
            arrays["num_nodes"] = np.array(self.num_nodes)
        return graph_from_arrays(arrays, self.path, **self._labelling)

    def _read_pyg(self) -> Graph:
        data = _load_pt(self.path)
        if self.num_nodes:
            data.num_nodes = self.num_nodes
        with naming(self.path):
            return graph_from_pyg(data, **self._labelling)

    @property
    def _labelling(self) -> dict[str, Any]:
        return {"regression": self.regression, "name": self._graph_name}

    @property
    def _graph_name(self) -> str:
        return self.path.name if self.path.is_dir() else self.path.stem


def _edge_file(folder: Path) -> Path:
    """Return the one edge list of a folder."""
    found = [folder / f"edges{suffix}" for suffix in EDGE_SUFFIXES]
    found = [path for path in found if path.is_file()]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        wanted = ", ".join(f"edges{suffix}" for suffix in EDGE_SUFFIXES)
        raise DatasetError(f"{folder} must hold one of {wanted}, got {names}")
    return found[0]


def files_beside(edges: Path, *, prefix: str) -> dict[str, Path]:
    """Return the file of each field, by the field's name; `x` may be `.npz`."""
    names = {**{key: key for key in FIELD_KEYS}, **ALIASES}
    found: dict[str, Path] = {}
    for name, key in names.items():
        for suffix in (".npy", ".npz") if key == "x" else (".npy",):
            path = edges.parent / f"{prefix}{name}{suffix}"
            if not path.is_file():
                continue
            if key in found:
                raise DatasetError(
                    f"{edges.parent} must hold {key} once, got {found[key].name} and {path.name}: "
                    "remove one"
                )
            found[key] = path
    return found


def _read_fields(files: dict[str, Path]) -> dict[str, Any]:
    arrays: dict[str, Array] = {}
    for key, path in files.items():
        arrays |= _read_csr(path) if path.suffix == ".npz" else {key: read_npy(path)}
    where = ", ".join(path.name for path in files.values())
    return graph_fields_from_arrays(arrays, where)


def _read_csr(path: Path) -> dict[str, Array]:
    """Read features in the layout of `scipy.sparse.save_npz`, or with keys as in `arrays.py`."""
    arrays = read_npz(path, ("format", "indptr", "indices", "data", "shape", *FIELD_KEYS[:5]))
    kind = arrays.pop("format", None)
    if kind is not None and kind.item() not in (b"csr", "csr"):
        raise DatasetError(f"{path}, key format must be csr, got {kind.item()!r}: use .tocsr()")
    renamed = {key if key.startswith("x") else f"x_{key}": value for key, value in arrays.items()}
    if not {"x", "x_indptr"} & renamed.keys():
        raise DatasetError(f"{path} must hold indptr, indices, data and shape, got no indptr")
    return renamed


def _count_nodes(fields: dict[str, Any]) -> int | None:
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        if name in fields and fields[name].shape:
            return int(fields[name].shape[0])
    return None


def _check_weights(edges: EdgeList, path: Path) -> None:
    if edges.weight is None:
        return
    bad = np.flatnonzero(~np.isfinite(edges.weight))
    if len(bad):
        place = edges.locate(int(bad[0]))
        raise DatasetError(f"{path}, {place}: weights must be finite, got {edges.weight[bad[0]]}")


def _check_ends(edges: EdgeList, path: Path, num_nodes: int | None) -> None:
    for ends in (edges.src, edges.dst):
        bad = np.flatnonzero((ends < 0) | (ends >= (INT64_MAX if num_nodes is None else num_nodes)))
        if len(bad):
            known = "" if num_nodes is None else f" to {num_nodes - 1} (N = {num_nodes})"
            raise DatasetError(
                f"{path}, {edges.locate(int(bad[0]))}: nodes are numbered from 0{known}, got "
                f"{ends[bad[0]]}: correct the edge, or state num_nodes"
            )
    if num_nodes is None:
        largest = int(max(edges.src.max(), edges.dst.max()))
        if largest > MAX_NODES_PER_EDGE * (len(edges.src) + 1024):
            raise DatasetError(
                f"{path} must number its nodes from 0 without large gaps, got ids up to {largest} "
                f"on {len(edges.src)} edges: renumber them, or append :num_nodes={largest + 1} to "
                "the path to keep them"
            )


def _load_pt(path: Path) -> Any:  # noqa: ANN401 - a torch_geometric Data
    """Load a saved `Data` without running code from the file."""
    import torch
    from torch_geometric.data import data, storage

    # The parts of a Data; PyG declares only the outer classes safe to load.
    parts = [storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage]
    parts += [data.DataEdgeAttr, data.DataTensorAttr]
    try:
        with torch.serialization.safe_globals(parts):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    # torch's reader of restricted pickles trips over foreign bytes in many ways.
    except Exception as error:
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        fault = f"the class {foreign[1]}" if foreign else f"{type(error).__name__}: {error}"
        raise DatasetError(
            f"{path} must be a torch_geometric Data saved by torch.save, of tensors and plain "
            f"values only (others could run code when loaded), got {fault}"
        ) from error
    if not isinstance(loaded, data.BaseData):
        raise DatasetError(
            f"{path} must hold one torch_geometric Data, got {type(loaded).__name__}: save "
            "dataset[0]"
        )
    return loaded


def _symmetrized(graph: Graph) -> Graph:
    src, dst = graph.edges()
    names = ("x", "y", "train_mask", "val_mask", "test_mask", *EDGE_NAMES)
    fields = {name: getattr(graph, name) for name in names if getattr(graph, name) is not None}
    return graph_from_edges(
        src,
        dst,
        num_nodes=graph.num_nodes,
        symmetrize=True,
        num_classes=graph.num_classes,
        regression=graph.regression,
        name=graph.name,
        **fields,
    )
