"""The structure of each part of a partition in local ids: what is written of it, and loaded.

    edge-cut     rows = owned nodes                  an edge is with its destination's owner
    vertex-cut   rows = owned nodes, halo nodes      an edge is where the partition puts it

Local ids: owned nodes by ascending global id, then halo nodes by ascending global id. A row's
sources are in the graph's order.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import csr_take
from gnn_dist.edge_partition import EdgePartition, PartEdges, part_edges
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition

__all__ = ["PartStructure", "part_structures"]

Array = NDArray[Any]


class PartStructure(NamedTuple):
    """Structure of one part, and which rows of the graph's arrays are its own.

    Attributes:
        indptr: int64 (n + 1,) of an edge-cut, (n + h + 1,) of a vertex-cut.
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


def part_structures(graph: Graph, partition: Partition | EdgePartition) -> Iterator[PartStructure]:
    """Yield the structure of each part. 4 bytes a node for all parts, and what is yielded."""
    if isinstance(partition, Partition):
        for part in range(partition.num_parts):
            yield _edge_cut_structure(graph, partition, part)
        return
    local = np.empty(graph.num_nodes, np.int32)  # of a part's clones; other elements mean nothing
    for edges in part_edges(graph, partition):
        yield _vertex_cut_structure(edges, partition.nodes, local)


def _vertex_cut_structure(edges: PartEdges, nodes: Partition, local: Array) -> PartStructure:
    halo = np.sort(nodes.global_id[edges.halo])
    clones = np.concatenate([edges.owned, nodes.order[halo]])
    local[clones] = np.arange(len(clones), dtype=np.int32)
    rows = local[edges.dst]
    order = np.argsort(rows, kind="stable")
    indptr = np.zeros(len(clones) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(clones)), out=indptr[1:])
    indices = local[edges.src[order]]
    return PartStructure(indptr, indices, halo, edges.owned, edges.position[order])


def _edge_cut_structure(graph: Graph, partition: Partition, part: int) -> PartStructure:
    start, stop = partition.book.node_ptr[part : part + 2]
    node_id = partition.order[start:stop]
    indptr, edge = csr_take(graph.indptr, node_id)
    source = partition.global_id[graph.indices[edge]]
    inside = (source >= start) & (source < stop)
    remote = source[~inside]
    halo = np.unique(remote)
    local = source - start
    local[~inside] = len(node_id) + np.searchsorted(halo, remote)
    return PartStructure(indptr, local.astype(np.int32), halo, node_id, edge)
