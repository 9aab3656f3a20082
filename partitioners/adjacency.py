"""The simple undirected graph that METIS and its kind need, made from any directed multigraph."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import chunks
from gnn_dist.graph import Graph, edge_chunks

__all__ = ["Adjacency", "internal_degree", "undirected"]

Array = NDArray[Any]


class Adjacency(NamedTuple):
    """An undirected graph in CSR: symmetric, no self-loops, no repeats.

    Attributes:
        indptr: int32 or int64 (n + 1,).
        indices: int32 or int64 (2m,), neighbours, in no particular order within a row.
        multiplicity: int32 (2m,), how many directed edges each entry stands for, at least one.
    """

    indptr: Array
    indices: Array
    multiplicity: Array

    @property
    def num_nodes(self) -> int:
        """The number of nodes, n."""
        return len(self.indptr) - 1

    def without_isolated(self) -> tuple["Adjacency", Array]:
        """Return the graph of the nodes that have neighbours, and the int64 ids of these nodes."""
        connected = np.diff(self.indptr) > 0
        core = np.flatnonzero(connected)
        if len(core) == self.num_nodes:
            return self, core
        new_id = np.cumsum(connected, dtype=self.indices.dtype) - 1
        indices = np.empty_like(self.indices)
        done = 0
        for block in chunks(self.indices):
            indices[done : done + len(block)] = new_id[block]
            done += len(block)
        indptr = np.append(self.indptr[core], self.indptr[-1])
        return Adjacency(indptr, indices, self.multiplicity), core


def undirected(graph: Graph) -> Adjacency:
    """Return a simple undirected copy of a graph, in O(N + E) time.

    Each pair of different nodes with an edge in either direction becomes one undirected edge,
    whose multiplicity counts the directed edges of both directions. Self-loops are left out: they
    are never cut.
    """
    import scipy.sparse

    copies = np.ones(graph.num_edges, np.int32)
    done = 0
    for src, dst in edge_chunks(graph):
        copies[done : done + len(src)] = src != dst
        done += len(src)
    shape = (graph.num_nodes, graph.num_nodes)
    one_way = scipy.sparse.csr_array((copies, graph.indices, graph.indptr), shape)
    both_ways = one_way + one_way.T.tocsr()  # adds up repeats and drops the zeros of self-loops
    both_ways.eliminate_zeros()
    return Adjacency(both_ways.indptr, both_ways.indices, both_ways.data)


def internal_degree(graph: Graph, assignment: Array) -> Array:
    """Return int64 (N,): how many edges, of both directions, each node shares with its own part."""
    degree = np.zeros(graph.num_nodes, np.int64)
    for src, dst in edge_chunks(graph):
        internal = (assignment[src] == assignment[dst]) & (src != dst)
        np.add.at(degree, src[internal], 1)
        np.add.at(degree, dst[internal], 1)
    return degree
