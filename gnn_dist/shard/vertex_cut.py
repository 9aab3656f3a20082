"""Writing the parts of a vertex-cut: an edge is where the partition puts it.

Local ids: owned nodes (root clones) by ascending global id, then halo nodes (other clones) by
ascending global id. The structure has rows for both, since both have in-edges in the part. A row's
sources are in the graph's order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.edge_partition import EdgePartition, PartEdges, part_edges
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures, Graph
from gnn_dist.partition import Partition
from gnn_dist.shard.writer import ArrayRow, NpyFile, part_name

__all__ = ["write_vertex_cut"]

Array = NDArray[Any]


class _PartStructure(NamedTuple):
    """Structure of one part, and which rows of the graph's arrays are its own.

    Attributes:
        indptr: int64 (n + h + 1,).
        indices: int32 (e,), local ids of sources.
        halo: int64 (h,), global ids, ascending.
        node_id: int64 (n,), original ids of owned nodes.
        edge: int64 (e,), positions of the edges in the graph.
    """

    indptr: Array
    indices: Array
    halo: Array
    node_id: Array
    edge: Array


def write_vertex_cut(graph: Graph, partition: EdgePartition, folder: Path) -> tuple[ArrayRow, ...]:
    """Write every part's arrays into an existing folder.

    Args:
        graph: The graph, in memory; its arrays keep their dtypes.
        partition: Its partition.
        folder: Where the parts' folders are made.

    Raises:
        OSError: A file cannot be written.
    """
    local = np.empty(graph.num_nodes, np.int32)  # of a part's clones; other elements mean nothing
    written = []
    for part, edges in enumerate(part_edges(graph, partition)):
        structure = _part_structure(edges, partition.nodes, local)
        (folder / part_name(part)).mkdir()
        for name, values, rows in _part_arrays(graph, structure):
            file = NpyFile(folder / part_name(part) / f"{name}.npy", values.dtype, values.shape)
            file.append(values)
            written.append(file.row(rows))
    return tuple(written)


def _part_structure(edges: PartEdges, nodes: Partition, local: Array) -> _PartStructure:
    halo = np.sort(nodes.global_id[edges.halo])
    clones = np.concatenate([edges.owned, nodes.order[halo]])
    local[clones] = np.arange(len(clones), dtype=np.int32)
    rows = local[edges.dst]
    order = np.argsort(rows, kind="stable")
    indptr = np.zeros(len(clones) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(clones)), out=indptr[1:])
    indices = local[edges.src[order]]
    return _PartStructure(indptr, indices, halo, edges.owned, edges.position[order])


def _part_arrays(graph: Graph, structure: _PartStructure) -> Iterator[tuple[str, Array, str]]:
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
