"""Our own partition folder as a `PartedGraph`, and back."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.convert.parted import PartData, PartedGraph
from gnn_dist.errors import ShardFormatError
from gnn_dist.partition import Partition
from gnn_dist.shard.format import META_FILE, Meta, read_meta, write_partition
from gnn_dist.shard.reader import ShardArrays, read_array, read_parts

__all__ = ["read_own", "write_own"]

Array = NDArray[Any]


def read_own(folder: Path) -> PartedGraph:
    """Read our partition folder.

    Edge numbers are the edges' ids where these are positions in a list of all edges; otherwise
    they are positions in the graph's own order, by (dst, src), and ids travel as edge data.

    Raises:
        ShardFormatError: The folder is damaged, or a vertex-cut, which no other format knows.
    """
    meta = read_meta(folder)
    if meta.cut != "edge":
        raise ShardFormatError(
            f"{folder} is a vertex-cut partition (--method {meta.partitioner['method']}), and DGL "
            "and PyTorch Geometric know edge-cuts alone: partition with an edge-cut method, as "
            "--method metis"
        )
    assignment = np.zeros(meta.num_nodes, np.int32)
    degree = np.zeros(meta.num_nodes, np.int64)
    for part in range(meta.num_parts):
        node_id = _load(folder, meta, part, "node_id")
        assignment[node_id] = part
        counts = np.diff(_load(folder, meta, part, "indptr"))
        if len(counts) != len(node_id):
            raise ShardFormatError(
                f"{folder}, part {part}: indptr must be of {len(node_id)} nodes, got {len(counts)}"
            )
        degree[node_id] = counts
    partition = Partition(assignment, meta.num_parts, **_how(meta.partitioner))
    row_start = np.cumsum(degree) - degree
    original = partition.order
    given = _ids_are_positions(folder, meta)

    def read(part: int) -> PartData:
        return _part(read_parts(folder, range(part, part + 1)), original, row_start, given)

    names, sparse = meta.arrays_of(0), None
    if "x_indptr" in names:
        sparse = "values" if "x_data" in names else "ones"
    return PartedGraph(
        meta.dataset,
        partition,
        meta.num_edges,
        meta.num_classes,
        given,
        read,
        sparse,
        regression=meta.task == "regression",
    )


def write_own(parted: PartedGraph, out: Path, *, overwrite: bool = False) -> Meta:
    """Write our partition folder. Needs memory for the whole graph, twice.

    Raises:
        ShardFormatError: The parts are not the whole graph, or `out` cannot be written.
        GraphError: An array has a wrong shape, dtype or value.
    """
    if out.exists() and not (overwrite and (out / META_FILE).is_file()):
        raise ShardFormatError(
            f"{out} exists: choose another --out, or replace a partition folder with --overwrite"
        )
    return write_partition(parted.graph(), parted.partition, out, overwrite=overwrite)


def _how(partitioner: dict[str, Any]) -> dict[str, Any]:
    return {
        "method": partitioner["method"],
        "options": partitioner["options"],
        "notes": tuple(partitioner["notes"]),
    }


def _load(folder: Path, meta: Meta, part: int, name: str) -> Array:
    if name not in meta.arrays_of(part):
        raise ShardFormatError(f"{folder / META_FILE} must list {name} for part {part}")
    row = meta.arrays_of(part)[name]
    values = read_array(folder / row.file, row, verify=True)
    if name == "node_id" and len(values) and not 0 <= values.min() <= values.max() < meta.num_nodes:
        raise ShardFormatError(
            f"{folder / row.file} must hold ids in 0..{meta.num_nodes - 1}, got {values.min()} to "
            f"{values.max()}: partition the dataset again"
        )
    return values


def _ids_are_positions(folder: Path, meta: Meta) -> bool:
    """Whether the edge ids are 0..E-1, each once; after symmetrising, say, they are not."""
    seen = np.zeros(meta.num_edges, bool)
    for part in range(meta.num_parts):
        if "edge_id" not in meta.arrays_of(part):
            return False
        ids = _load(folder, meta, part, "edge_id")
        if len(ids) and not 0 <= ids.min() <= ids.max() < meta.num_edges:
            return False
        seen[ids] = True
    return bool(seen.all())


def _part(shard: ShardArrays, original: Array, row_start: Array, given: bool) -> PartData:
    """Return a part whose numbers are its ids (`given`) or positions by (dst, src)."""
    num_owned = len(shard.node_id)
    owned = np.arange(shard.owned_start, shard.owned_start + num_owned)
    src = original[np.concatenate([owned, shard.halo])][shard.indices]
    edge = dict(shard.edge)
    if given:
        number = edge.pop("edge_id")
    else:
        shift = row_start[shard.node_id] - shard.indptr[:-1]
        number = np.arange(len(src)) + np.repeat(shift, np.diff(shard.indptr))
    node = {} if shard.x is None else {"x": shard.x}
    return PartData(
        node_id=np.asarray(shard.node_id),
        indptr=np.asarray(shard.indptr),
        src=src,
        edge_number=np.asarray(number),
        node={**node, **shard.owned},
        edge=edge,
    )
