"""The one table of array names from which graphs on disk are built, and safe reading of `.npz`.

    structure  edge_index (2, E), row 0 = src, row 1 = dst
               or indptr (N + 1,) and indices (E,), row v listing v's in-neighbours
    features   x (N, F), or CSR: x_indptr x_indices x_shape [x_data, absent or empty = all ones]
    labels     y
    masks      train_mask val_mask test_mask, (N,) or (N, S)
               or train_masks val_masks test_masks, (S, N)
    edges      edge_id edge_weight edge_attr edge_type, in the order of the structure
    num_nodes  a single integer, where trailing nodes have no edges and nothing else tells

The `.npz` graphs and all user data go through here; pickles are never read.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from gnn_dist.datasets.base import naming
from gnn_dist.errors import DatasetError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, Graph, graph_from_edges

__all__ = [
    "FIELD_KEYS",
    "GRAPH_KEYS",
    "csr_ends",
    "csr_from_dense",
    "graph_fields_from_arrays",
    "graph_from_arrays",
    "npz_keys",
    "read_npy",
    "read_npz",
]

Array = NDArray[Any]

CSR_KEYS = ("x_indptr", "x_indices", "x_data", "x_shape")
MASK_STACKS = {f"{name}s": name for name in MASK_NAMES}
FIELD_KEYS = ("x", *CSR_KEYS, "y", *MASK_NAMES, *MASK_STACKS, *EDGE_NAMES)
GRAPH_KEYS = ("edge_index", "indptr", "indices", "num_nodes", *FIELD_KEYS)
# What NumPy raises for truncated, foreign or pickled content.
DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def read_npz(path: Path, wanted: Sequence[str] = GRAPH_KEYS) -> dict[str, Array]:
    """Read those of some arrays that an `.npz` file holds.

    Raises:
        DatasetError: The file is missing, is no `.npz`, or one of the arrays is damaged or a
            pickle; the message names the file and the key.
    """
    with _open_npz(path) as archive:
        return {key: _read_member(archive, key, path) for key in wanted if key in archive.files}


def npz_keys(path: Path) -> list[str]:
    """Return the names of the arrays in an `.npz` file.

    Raises:
        DatasetError: The file is missing or is no `.npz`.
    """
    with _open_npz(path) as archive:
        return list(archive.files)


def read_npy(path: Path, *, mapped: bool = False) -> Array:
    """Read an `.npy` file.

    Args:
        path: The file.
        mapped: Map it into memory instead.

    Raises:
        DatasetError: The file is missing, damaged, or holds pickled objects.
    """
    try:
        if mapped:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with path.open("rb") as file:
                array = np.load(file, allow_pickle=False)
    except DAMAGE as error:
        raise DatasetError(
            f"{path} must be a readable .npy file without pickles: {error}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DatasetError(f"{path} must be an .npy file, got an .npz archive: rename it")
    return array


def graph_from_arrays(
    arrays: Mapping[str, Array], where: object, *, name: str, regression: bool = False
) -> Graph:
    """Build a graph from arrays of the names above.

    Args:
        arrays: The arrays.
        where: The file that they come from, for messages.
        name: The graph's name.
        regression: Whether `y` are numbers to predict.

    Raises:
        DatasetError: Arrays are missing, contradict each other, or hold illegal values.
    """
    fields = graph_fields_from_arrays(arrays, where) | {"regression": regression}
    with naming(where):
        if "edge_index" in arrays:
            if "indptr" in arrays:
                raise DatasetError(f"{where} must hold edge_index or indptr, got both: keep one")
            src, dst = _edge_ends(arrays["edge_index"], where)
            num_nodes = _num_nodes(arrays, where)
            return graph_from_edges(src, dst, num_nodes=num_nodes, name=name, **fields)
        if "indptr" not in arrays or "indices" not in arrays:
            raise DatasetError(
                f"{where} must hold edge_index, or indptr and indices, got "
                f"{', '.join(arrays) or 'none of the known arrays'}"
            )
        return _graph_from_csr(arrays, fields, where, name)


def graph_fields_from_arrays(arrays: Mapping[str, Array], where: object) -> dict[str, Any]:
    """Return the fields of `Graph` other than its structure.

    Raises:
        DatasetError: A part of the CSR features is missing, or a field is there twice.
    """
    fields = {key: arrays[key] for key in ("y", *MASK_NAMES, *EDGE_NAMES) if key in arrays}
    for stack, mask in MASK_STACKS.items():
        if stack not in arrays:
            continue
        if mask in arrays:
            raise DatasetError(f"{where} must hold {mask} or {stack}, got both: keep one")
        if arrays[stack].ndim != 2:
            raise DatasetError(
                f"{where}, key {stack} must have shape (splits, N), got {arrays[stack].shape}"
            )
        fields[mask] = np.ascontiguousarray(arrays[stack].T)
    x = _features(arrays, where)
    return fields if x is None else {"x": x, **fields}


def csr_ends(indptr: Array, indices: Array, where: object) -> tuple[Array, Array]:
    """Return (src, dst), both (E,), of a CSR structure whose rows need not be ascending.

    Raises:
        DatasetError: `indptr` does not rise from 0 to the number of indices.
    """
    if (
        indptr.ndim != 1
        or indptr.size == 0
        or indptr.dtype.kind not in "iu"
        or (indptr[0], indptr[-1]) != (0, indices.size)
        or (indptr[1:] < indptr[:-1]).any()
    ):
        raise DatasetError(
            f"{where}, key indptr must rise from 0 to the number of indices ({indices.size}), got "
            f"shape {indptr.shape} of {indptr.dtype}"
        )
    return indices, np.repeat(np.arange(indptr.size - 1), np.diff(indptr))


def csr_from_dense(x: Array) -> CSRFeatures:
    """Return a dense (N, F) matrix as CSR, without values where all stored ones are one."""
    rows, columns = np.nonzero(x)
    indptr = np.zeros(len(x) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(x)), out=indptr[1:])
    values = x[rows, columns]
    return CSRFeatures(indptr, columns, None if (values == 1).all() else values, x.shape[1])


@contextmanager
def _open_npz(path: Path) -> Iterator[NpzFile]:
    if not path.exists():
        raise DatasetError(f"{path} does not exist")
    # The file is opened here because NumPy leaves it open when the content is no archive.
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except DAMAGE as error:
            raise DatasetError(
                f"{path} must be an .npz archive, got a damaged or foreign file ({error}): "
                "copy or create it again"
            ) from error
        if not isinstance(archive, NpzFile):
            raise DatasetError(f"{path} must be an .npz archive, got a single array: name it .npy")
        with archive:
            yield archive


def _read_member(archive: NpzFile, key: str, path: Path) -> Array:
    try:
        array: Array = archive[key]
    except DAMAGE as error:
        raise DatasetError(
            f"{path}, key {key} must be a plain array, got one that cannot be read ({error}): "
            "copy or create the file again"
        ) from error
    return array


def _features(arrays: Mapping[str, Array], where: object) -> Array | CSRFeatures | None:
    if "x_indptr" not in arrays:
        return arrays.get("x")
    if "x" in arrays:
        raise DatasetError(f"{where} must hold x or x_indptr, got both: keep one")
    for key in ("x_indices", "x_shape"):
        if key not in arrays:
            raise DatasetError(f"{where} must hold {key} beside x_indptr, got no such array")
    shape, indptr, data = arrays["x_shape"], arrays["x_indptr"], arrays.get("x_data")
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != indptr.size - 1:
        raise DatasetError(
            f"{where}, key x_shape must be (rows of x_indptr = {indptr.size - 1}, F), got "
            f"{shape.tolist()}"
        )
    if data is not None and data.size == 0:
        data = None
    with naming(where):
        return CSRFeatures(indptr, arrays["x_indices"], data, int(shape[1]))


def _edge_ends(edge_index: Array, where: object) -> tuple[Array, Array]:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise DatasetError(
            f"{where}, key edge_index must have shape (2, E), got {edge_index.shape}"
        )
    return edge_index[0], edge_index[1]


def _num_nodes(arrays: Mapping[str, Array], where: object) -> int | None:
    count = arrays.get("num_nodes")
    if count is None:
        return None
    if count.size != 1 or count.dtype.kind not in "iu" or count.item() < 0:
        raise DatasetError(f"{where}, key num_nodes must be one count, got {count.tolist()}")
    return int(count.item())


def _graph_from_csr(
    arrays: Mapping[str, Array], fields: dict[str, Any], where: object, name: str
) -> Graph:
    """Build a graph from CSR; rows that are not ascending are sorted, edge data with them."""
    indptr, indices = arrays["indptr"], arrays["indices"]
    src, dst = csr_ends(indptr, indices, where)
    ascending = (np.diff(src) >= 0) | (np.diff(dst) > 0)
    if ascending.all():
        return Graph(indptr, indices, name=name, **fields)
    return graph_from_edges(src, dst, num_nodes=indptr.size - 1, name=name, **fields)
