"""The simple undirected graph that METIS and its kind need, made from any directed multigraph.

Each pair of different nodes with an edge in either direction becomes one undirected edge, whose
multiplicity counts the directed edges of both directions. Self-loops are left out: they are never
cut. It is made row by row, so that the whole of it need never be in memory.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import INT32_LIMIT, row_blocks
from gnn_dist.graph import Graph, edge_chunks

__all__ = ["UndirectedRows", "has_neighbours", "internal_degree", "undirected_rows"]

Array = NDArray[Any]


class UndirectedRows(NamedTuple):
    """Consecutive rows of an undirected graph in CSR.

    Attributes:
        start: The first row.
        degree: int64 (r,), neighbours of each row.
        neighbours: int64 (k,), row after row, ascending.
        multiplicity: int64 (k,), how many directed edges each entry stands for, at least one.
    """

    start: int
    degree: Array
    neighbours: Array
    multiplicity: Array


def has_neighbours(graph: Graph) -> Array:
    """Return bool (N,): which nodes have an edge, in either direction, with another node."""
    connected = np.zeros(graph.num_nodes, bool)
    for src, dst in edge_chunks(graph):
        proper = src != dst
        connected[src[proper]] = True
        connected[dst[proper]] = True
    return connected


def undirected_rows(graph: Graph) -> Iterator[UndirectedRows]:
    """Yield a simple undirected copy of a graph, some rows at a time, from node 0 to N - 1.

    O(N + E log E) time; 5 bytes an edge while it runs, for the transposed structure
    (17 from 2^31 edges).
    """
    import scipy.sparse

    num_nodes = graph.num_nodes
    no_data = np.zeros(graph.num_edges, np.int8)
    # SciPy widens the indices to the offsets' type, so give narrow offsets where they fit.
    narrow = graph.indices.dtype if graph.num_edges < INT32_LIMIT else np.dtype(np.int64)
    rows_in = (no_data, graph.indices, graph.indptr.astype(narrow, copy=False))
    out = scipy.sparse.csr_array(rows_in, (num_nodes, num_nodes)).tocsc()
    del no_data, rows_in
    for rows in row_blocks(graph.in_degree + np.diff(out.indptr)):
        # One number for each (row of the block, neighbour), of both directions.
        keys = [
            np.repeat(
                np.arange(rows.stop - rows.start) * num_nodes,
                np.diff(indptr[rows.start : rows.stop + 1]),
            )
            + indices[indptr[rows.start] : indptr[rows.stop]]
            for indptr, indices in ((graph.indptr, graph.indices), (out.indptr, out.indices))
        ]
        pairs, multiplicity = np.unique(np.concatenate(keys), return_counts=True)
        row, neighbour = np.divmod(pairs, num_nodes)
        proper = neighbour != row + rows.start
        degree = np.bincount(row[proper], minlength=rows.stop - rows.start)
        yield UndirectedRows(rows.start, degree, neighbour[proper], multiplicity[proper])


def internal_degree(graph: Graph, assignment: Array) -> Array:
    """Return int64 (N,): how many edges, of both directions, each node shares with its own part."""
    degree = np.zeros(graph.num_nodes, np.int64)
    for src, dst in edge_chunks(graph):
        internal = (assignment[src] == assignment[dst]) & (src != dst)
        np.add.at(degree, src[internal], 1)
        np.add.at(degree, dst[internal], 1)
    return degree
