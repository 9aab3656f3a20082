"""Streams of edges: restartable, in any chunks, and checked as they pass."""

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case

from gnn_dist.edge_stream import EdgeStream, GraphOnDisk, first_bad_edge, id_dtype, stream_of
from gnn_dist.errors import GraphError
from gnn_dist.graph import CSRFeatures


def listed(stream, chunk_edges):
    chunks = list(stream.chunks(chunk_edges))
    assert all(len(src) == len(dst) <= chunk_edges for src, dst in chunks)
    return [(int(s), int(d)) for src, dst in chunks for s, d in zip(src, dst, strict=True)]


def stream(src, dst, num_nodes=4, num_edges=None, dtype=np.int64):
    src, dst = np.array(src, dtype), np.array(dst, dtype)
    num_edges = len(src) if num_edges is None else num_edges
    return EdgeStream(lambda size: iter([(src, dst)]), num_nodes, num_edges, name="mine")


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("chunk_edges", [1, 3, 1 << 20])
def test_a_graph_is_a_stream_in_csr_order(name, chunk_edges):
    graph = awkward_case(name).graph
    edges = stream_of(graph)
    src, dst = graph.edges()
    expected = list(zip(src.tolist(), dst.tolist(), strict=True))
    assert listed(edges, chunk_edges) == listed(edges, chunk_edges) == expected
    assert (edges.num_nodes, edges.num_edges, edges.name) == (
        graph.num_nodes,
        graph.num_edges,
        graph.name,
    )
    assert set(edges.node_data) == {"x", "y", "num_classes", "train_mask", "val_mask", "test_mask"}
    assert edges.x is graph.x


def test_sparse_features_stay_behind():
    graph = awkward_case("star").graph
    sparse = CSRFeatures(np.zeros(26, np.int64), np.zeros(0, np.int32), None, 3)
    assert stream_of(graph.replace(x=sparse)).x is None


def test_chunks_of_the_reader_are_cut():
    assert listed(stream([0, 1, 2], [3, 3, 3]), 2) == [(0, 3), (1, 3), (2, 3)]


def test_ids_beyond_int32_pass():
    large = 2**31 + 5
    assert listed(stream([large], [0], large + 1), 9) == [(large, 0)]
    assert id_dtype(2**31 - 1) == np.int32
    assert id_dtype(2**31) == np.int64


@pytest.mark.parametrize(("src", "dst"), [([0, -1], [1, 1]), ([0, 1], [1, 4]), ([0, 4], [0, -1])])
def test_an_end_that_is_no_node_is_named(src, dst):
    with pytest.raises(GraphError, match=rf"mine, edge 1 \({src[1]} -> {dst[1]}\).*0\.\.3"):
        list(stream(src, dst).chunks())


def test_first_bad_edge_finds_the_first():
    ends = np.array([0, 9, -1])
    assert first_bad_edge(ends, np.zeros(3, np.int64), 5) == 1
    assert first_bad_edge(ends[:1], ends[:1], 5) is None
    assert first_bad_edge(ends[:0], ends[:0], 0) is None


@pytest.mark.parametrize("num_edges", [1, 3])
def test_a_wrong_number_of_edges_is_refused(num_edges):
    with pytest.raises(GraphError, match=rf"num_edges={num_edges} edges, got 2"):
        list(stream([0, 1], [1, 2], num_edges=num_edges).chunks())


def test_wrong_arrays_are_refused():
    with pytest.raises(GraphError, match="int32 or int64"):
        list(stream([0], [1], dtype=np.float32).chunks())
    with pytest.raises(GraphError, match="equal length"):
        list(stream([0, 1], [1]).chunks())
    with pytest.raises(GraphError, match="chunk_edges"):
        list(stream([0], [1]).chunks(0))
    with pytest.raises(GraphError, match="x must have num_nodes=4 rows, got 3"):
        EdgeStream(lambda size: iter(()), 4, 0, x=np.zeros((3, 1)))
    with pytest.raises(GraphError, match="at least 0"):
        EdgeStream(lambda size: iter(()), -1, 0)


def test_a_graph_on_disk_is_a_graph_that_is_not_read(tmp_path):
    graph = awkward_case("directed").graph
    np.save(tmp_path / "indices.npy", graph.indices)
    indices = np.load(tmp_path / "indices.npy", mmap_mode="r")
    held = GraphOnDisk(graph.indptr, indices, symmetric=True, name="disk")
    assert isinstance(held.indices, np.memmap)
    assert held.is_symmetric
    assert not graph.is_symmetric
    assert listed(stream_of(held), 7) == listed(stream_of(graph), 7)
    assert held.replace(symmetric=False).is_symmetric is False
