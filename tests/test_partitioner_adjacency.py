import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist import arrays
from gnn_dist.graph import graph_from_edges
from gnn_dist.partitioners import adjacency
from gnn_dist.partitioners.adjacency import has_neighbours, internal_degree, undirected_rows


def dense(graph):
    """The whole undirected graph as a matrix of multiplicities."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes), int)
    row = 0
    for rows in undirected_rows(graph):
        assert len(rows.neighbours) == len(rows.multiplicity) == rows.degree.sum()
        ends = np.cumsum(rows.degree)
        for degree, end in zip(rows.degree, ends, strict=True):
            entries = slice(end - degree, end)
            assert (np.diff(rows.neighbours[entries]) > 0).all()
            matrix[row, rows.neighbours[entries]] = rows.multiplicity[entries]
            row += 1
    assert row == graph.num_nodes
    return matrix


def expected(graph):
    matrix = np.zeros((graph.num_nodes, graph.num_nodes), int)
    src, dst = graph.edges()
    np.add.at(matrix, (dst, src), 1)
    matrix += matrix.T
    np.fill_diagonal(matrix, 0)
    return matrix


def test_directions_repeats_and_loops():
    # 0 -> 1 three times, 1 -> 0 once, 2 -> 2, 2 -> 1; node 3 is isolated.
    graph = graph_from_edges([0, 0, 0, 1, 2, 2], [1, 1, 1, 0, 2, 1], num_nodes=4)
    assert dense(graph).tolist() == [[0, 4, 0, 0], [4, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert has_neighbours(graph).tolist() == [True, True, True, False]


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(0, 40), st.integers(1, 50))
def test_any_multigraph(seed, num_nodes, num_edges, limit):
    src, dst = np.random.default_rng(seed).integers(0, num_nodes, (2, num_edges))
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHECK_CHUNK", limit)
        assert dense(graph).tolist() == expected(graph).tolist()
        assert has_neighbours(graph).tolist() == expected(graph).any(axis=0).tolist()


def test_wide_ids_and_offsets_are_used_as_they_are(monkeypatch):
    monkeypatch.setattr(adjacency, "INT32_LIMIT", 1)
    graph = graph_from_edges([0, 1], [1, 2])
    assert dense(graph).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    object.__setattr__(graph, "indices", graph.indices.astype(np.int64))  # as from 2^31 nodes
    assert dense(graph).tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_internal_degree_counts_both_directions_but_no_loops():
    graph = graph_from_edges([0, 0, 1, 2, 3], [1, 1, 0, 3, 3], num_nodes=4)
    assert internal_degree(graph, np.array([0, 0, 1, 1])).tolist() == [3, 3, 1, 1]
    assert internal_degree(graph, np.array([0, 1, 0, 1])).tolist() == [0, 0, 0, 0]
