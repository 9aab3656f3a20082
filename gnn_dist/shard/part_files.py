"""The files of one part: what their names and rows are, and how they are written."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, Graph
from gnn_dist.shard.part_structure import PartStructure

__all__ = ["ArrayRow", "part_name", "write_part"]

Array = NDArray[Any]


@dataclass(frozen=True)
class ArrayRow:
    """One array of one part, as `meta.json` lists it.

    Attributes:
        name: What it is: `indptr`, `x`, `train_mask`, ...
        file: Path inside the folder, `part-0003/x.npy`.
        dtype: NumPy's name of the dtype.
        shape: Its shape.
        sha256: Hash of the whole file, hexadecimal.
        rows: What its rows are: `owned`, `halo`, `edges`, or `other` (offsets, sparse values).
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    rows: str


def part_name(part: int) -> str:
    """Return the folder name of a part."""
    return f"part-{part:04d}"


def write_part(
    graph: Graph, structure: PartStructure, part: int, folder: Path
) -> Iterator[ArrayRow]:
    """Write the arrays of one part of a graph below `folder`, and yield what was written."""
    (folder / part_name(part)).mkdir()
    for name, values, rows in _part_arrays(graph, structure):
        file = f"{part_name(part)}/{name}.npy"
        digest = _save(folder / file, values)
        yield ArrayRow(name, file, values.dtype.name, values.shape, digest, rows)


def _part_arrays(graph: Graph, structure: PartStructure) -> Iterator[tuple[str, Array, str]]:
    """Yield (name, array, what its rows are) of one part."""
    node_id = structure.node_id
    yield "indptr", structure.indptr, "other"
    yield "indices", structure.indices, "edges"
    yield "halo", structure.halo, "halo"
    yield "node_id", node_id, "owned"
    if isinstance(graph.x, CSRFeatures):
        features = graph.x.take(node_id)
        yield "x_indptr", features.indptr, "other"
        yield "x_indices", features.indices, "other"
        if features.data is not None:
            yield "x_data", features.data, "other"
    elif graph.x is not None:
        yield "x", graph.x[node_id], "owned"
    for name in ("y", *MASK_NAMES):
        if getattr(graph, name) is not None:
            yield name, getattr(graph, name)[node_id], "owned"
    for name in EDGE_NAMES:
        if getattr(graph, name) is not None:
            yield name, getattr(graph, name)[structure.edge], "edges"


class _HashingFile:
    """A writer that hashes what passes through it, so that nothing is read twice."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        return self.file.write(data)


def _save(path: Path, values: Array) -> str:
    with path.open("wb") as file:
        hashing = _HashingFile(file)
        np.lib.format.write_array(hashing, np.ascontiguousarray(values), allow_pickle=False)
        return hashing.hash.hexdigest()
