import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gnn_dist.graph
from gnn_dist import arrays
from gnn_dist.errors import GraphError
from gnn_dist.graph import CSRFeatures, Graph, edge_chunks, graph_fields, graph_from_edges


def edge_lists(max_nodes=8):
    """Strategy: (num_nodes, src, dst) of a multigraph with self-loops."""

    def edges(num_nodes):
        node = st.integers(0, num_nodes - 1)
        return st.lists(st.tuples(node, node), max_size=20).map(
            lambda pairs: (num_nodes, *np.array(pairs, np.int64).reshape(-1, 2).T)
        )

    return st.integers(1, max_nodes).flatmap(edges)


def path3(**data):
    """0 -> 1 -> 2."""
    return graph_from_edges([0, 1], [1, 2], num_nodes=3, **data)


def test_doctests():
    assert doctest.testmod(gnn_dist.graph).failed == 0


# ---- structure


def test_rows_are_destinations_with_ascending_sources():
    graph = graph_from_edges([2, 1, 0, 2], [0, 2, 2, 0], num_nodes=3)
    assert graph.indptr.tolist() == [0, 2, 2, 4]
    assert graph.indices.tolist() == [2, 2, 0, 1]
    assert graph.indptr.dtype == np.int64
    assert graph.indices.dtype == np.int32
    assert graph.in_degree.tolist() == [2, 0, 2]
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (3, 4, 0)
    src, dst = graph.edges()
    assert src.tolist() == [2, 2, 0, 1]
    assert dst.tolist() == [0, 0, 2, 2]
    assert dst.dtype == np.int32


@given(edge_lists())
def test_edges_are_conserved(case):
    num_nodes, src, dst = case
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    assert sorted(zip(*graph.edges(), strict=True)) == sorted(zip(src, dst, strict=True))


@given(edge_lists(), st.integers(1, 5))
def test_edge_chunks_are_the_edges(case, limit):
    num_nodes, src, dst = case
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHECK_CHUNK", limit)
        blocks = list(edge_chunks(graph))
    assert np.concatenate([b[0] for b in blocks]).tolist() == graph.edges()[0].tolist()
    assert np.concatenate([b[1] for b in blocks]).tolist() == graph.edges()[1].tolist()


@given(edge_lists())
def test_symmetrize_adds_reverses_and_leaves_no_repeats(case):
    num_nodes, src, dst = case
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=True)
    expected = set(zip(src, dst, strict=True)) | set(zip(dst, src, strict=True))
    assert list(zip(*graph.edges(), strict=True)) == sorted(expected, key=lambda e: (e[1], e[0]))
    assert graph.is_symmetric


@given(edge_lists())
def test_is_symmetric_counts_copies(case):
    num_nodes, src, dst = case
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    dense = np.zeros((num_nodes, num_nodes), int)
    np.add.at(dense, (src, dst), 1)
    assert graph.is_symmetric == np.array_equal(dense, dense.T)


def test_is_symmetric_compares_weights():
    both = ([0, 1, 1], [1, 0, 1])
    assert graph_from_edges(*both, edge_weight=[2.0, 2.0, 5.0]).is_symmetric
    assert not graph_from_edges(*both, edge_weight=[2.0, 3.0, 5.0]).is_symmetric


def test_last_nodes_may_be_isolated():
    by_ids = graph_from_edges([0], [1])
    assert by_ids.num_nodes == 2
    assert graph_from_edges([0], [1], x=np.zeros((5, 2))).num_nodes == 5
    assert graph_from_edges([0], [1], y=[0, 1, 0, 1]).num_nodes == 4
    assert graph_from_edges([0], [1], train_mask=[True] * 3).num_nodes == 3
    assert graph_from_edges([0], [1], num_nodes=6).in_degree.tolist() == [0, 1, 0, 0, 0, 0]


def test_empty_graphs():
    graph = graph_from_edges([], [])
    assert (graph.num_nodes, graph.num_edges) == (0, 0)
    assert graph.is_symmetric
    assert list(edge_chunks(graph)) == []
    assert graph_from_edges([], [], num_nodes=2).indptr.tolist() == [0, 0, 0]


def test_edge_data_goes_with_its_edge():
    graph = graph_from_edges(
        [2, 0, 1],
        [1, 1, 0],
        num_nodes=3,
        edge_weight=[0.5, 1.5, 2.5],
        edge_attr=[1, 2, 3],
        edge_type=[7, 8, 9],
    )
    assert graph.indices.tolist() == [1, 0, 2]
    assert graph.edge_id.tolist() == [2, 1, 0]
    assert graph.edge_id.dtype == np.int64
    assert graph.edge_weight.tolist() == [2.5, 1.5, 0.5]
    assert graph.edge_attr.tolist() == [[3.0], [2.0], [1.0]]
    assert graph.edge_attr.dtype == np.float32
    assert graph.edge_type.tolist() == [9, 8, 7]


def test_symmetrize_copies_edge_data_to_the_reverse():
    graph = graph_from_edges([0, 0], [1, 1], symmetrize=True, edge_weight=[3.0, 4.0])
    assert graph.indices.tolist() == [1, 0]
    assert graph.edge_weight.tolist() == [3.0, 3.0]  # the first of repeats
    assert graph.edge_id.tolist() == [0, 0]


def test_input_is_not_changed():
    src, dst = np.array([2, 0]), np.array([0, 1])
    weight = np.array([1.0, 2.0])
    for array in (src, dst, weight):
        array.flags.writeable = False
    graph_from_edges(src, dst, edge_weight=weight, symmetrize=True)


@pytest.mark.parametrize(
    ("src", "dst", "options", "message"),
    [
        ([0], [3], {"num_nodes": 3}, r"edge 0 \(0 -> 3\) ends at a node that does not exist"),
        ([0, -1], [0, 0], {"num_nodes": 3}, r"edge 1 \(-1 -> 0\).*ids must lie in 0\.\.2"),
        ([0, 1], [0], {}, "equally long, got 2 and 1"),
        ([0.5], [0], {}, "src must be an integer vector, got shape .1,. of float64"),
        ([0], [[0]], {}, "dst must be an integer vector"),
        ([0], [0], {"num_nodes": -1}, "num_nodes must be at least 0, got -1"),
        ([0], [0], {"edge_weight": [1.0, 2.0]}, r"edge_weight must have one row per edge \(1\)"),
    ],
)
def test_bad_edges_are_refused(src, dst, options, message):
    with pytest.raises(GraphError, match=message):
        graph_from_edges(src, dst, **options)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 1], [0, 0], r"indptr must rise from 0 to the number of entries \(2\)"),
        ([0, 2], [0, 5], r"indices must lie in 0\.\.0, got 5"),
        ([0, 2, 2], [1, 0], "indices must ascend inside a row, got 0 after 1 in row 0"),
    ],
)
def test_bad_csr_is_refused(indptr, indices, message):
    with pytest.raises(GraphError, match=message):
        Graph(np.array(indptr), np.array(indices))


# ---- features


def test_features_keep_their_float_dtype():
    for dtype in (np.float16, np.float32, np.float64):
        x = np.ones((3, 2), dtype)
        assert path3(x=x).x is x
    assert path3(x=np.ones((3, 2), np.int64)).x.dtype == np.float32
    assert path3(x=[[1.0], [2.0], [3.0]]).num_features == 1


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 4)), r"x must have shape \(num_nodes=3, F\), got \(2, 4\)"),
        (np.zeros(3), r"got \(3,\)"),
        (np.float64(3), r"got \(\)"),
        (np.array([[0.0], [np.nan], [0.0]]), "x must be finite, got nan in row 1"),
        (np.array([["a"]] * 3), "x must hold numbers"),
    ],
)
def test_bad_features_are_refused(x, message):
    with pytest.raises(GraphError, match=message):
        graph_from_edges([0, 1], [1, 2], num_nodes=3, x=x)


def sparse_features(**changes):
    fields = {
        "indptr": np.array([0, 2, 2, 3]),
        "indices": np.array([0, 3, 1]),
        "data": np.array([1.0, 2.0, 3.0]),
        "num_features": 4,
    }
    return CSRFeatures(**{**fields, **changes})


def test_sparse_features():
    x = sparse_features()
    graph = path3(x=x)
    assert graph.x is x
    assert x.shape == (3, 4)
    assert graph.num_features == 4
    assert x.indices.dtype == np.int32
    assert x.to_dense().tolist() == [[1, 0, 0, 2], [0] * 4, [0, 3, 0, 0]]
    assert x.take(np.array([2, 0])).to_dense().tolist() == [[0, 3, 0, 0], [1, 0, 0, 2]]


def test_sparse_features_of_implied_ones():
    x = sparse_features(data=None, indices=np.array([1, 1, 0]))
    assert x.dtype == np.float32
    assert x.to_dense().tolist() == [[0, 2, 0, 0], [0] * 4, [1, 0, 0, 0]]
    assert x.take(np.array([0])).data is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indptr": np.array([0, 2])}, "x_indptr must rise from 0"),
        ({"indices": np.array([0, 4, 1])}, r"x_indices must lie in 0\.\.3, got 4"),
        ({"data": np.ones(2)}, "x_data must have one value per index"),
        ({"data": np.array([1.0, np.nan, 1.0])}, "x_data must be finite"),
    ],
)
def test_bad_sparse_features_are_refused(changes, message):
    with pytest.raises(GraphError, match=message):
        sparse_features(**changes)


def test_sparse_features_of_other_length_are_refused():
    with pytest.raises(GraphError, match=r"got \(3, 4\)"):
        graph_from_edges([0], [1], num_nodes=2, x=sparse_features())


# ---- labels and masks


def test_labels_of_one_class_each():
    graph = path3(y=[2, 0, -1])
    assert graph.y.dtype == np.int64
    assert (graph.task, graph.num_classes) == ("multiclass", 3)
    assert path3(y=[0, 0, 0], num_classes=5).num_classes == 5
    assert path3(y=np.array([[1], [0], [2]])).y.tolist() == [1, 0, 2]
    assert path3(y=np.array([1.0, np.nan, 0.0])).y.tolist() == [1, -1, 0]
    assert path3(y=[-1, -1, -1]).num_classes == 0


def test_several_labels_a_node():
    graph = path3(y=[[0, 1], [1, 1], [0, 0]])
    assert graph.y.dtype == bool
    assert (graph.task, graph.num_classes) == ("multilabel", 2)


def test_no_labels():
    graph = path3()
    assert (graph.task, graph.num_classes, graph.num_splits) == (None, None, 0)


@pytest.mark.parametrize(
    ("y", "num_classes", "message"),
    [
        ([0, 1], None, r"y must have shape \(num_nodes=3,\)"),
        (np.zeros((3, 2, 2)), None, r"got \(3, 2, 2\)"),
        ([0, 1, -2], None, "or -1 for none, got -2 at node 2"),
        ([0, 3, 1], 3, r"labels must lie in 0\.\.2 \(num_classes=3\), got 3 at node 1"),
        ([0.0, 0.5, 1.0], None, "whole class numbers, got 0.5 at node 1"),
        ([0.0, 0.0, np.inf], None, "whole class numbers, got inf at node 2"),
        (["a", "b", "c"], None, "y must hold class numbers"),
        ([[0, 1], [1, 2], [0, 0]], None, "several labels a node must hold booleans"),
        ([[0, 1], [1, 1], [0, 0]], 3, r"one column per class \(num_classes=3\), got 2 columns"),
    ],
)
def test_bad_labels_are_refused(y, num_classes, message):
    with pytest.raises(GraphError, match=message):
        graph_from_edges([0], [1], num_nodes=3, y=np.asarray(y), num_classes=num_classes)


def test_masks_of_one_and_of_several_splits():
    graph = path3(train_mask=[1, 0, 0], val_mask=np.array([0.0, 1.0, 0.0]))
    assert graph.train_mask.tolist() == [True, False, False]
    assert graph.val_mask.dtype == bool
    assert graph.test_mask is None
    assert graph.num_splits == 1
    assert path3(train_mask=np.zeros((3, 4), bool)).num_splits == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train_mask": [True]}, r"train_mask must have shape \(num_nodes=3,\)"),
        ({"test_mask": [0, 1, 2]}, "test_mask must hold booleans or 0 and 1"),
        (
            {"train_mask": np.zeros((3, 2), bool), "val_mask": np.zeros((3, 3), bool)},
            "the masks must hold equally many splits",
        ),
        ({"y": [0, -1, -1], "val_mask": [1, 1, 1]}, "got 2 without a label, the first node 1"),
        (
            {"y": [0, 0, -1], "train_mask": [[1, 0], [0, 0], [0, 1]]},
            "got 1 without a label, the first node 2",
        ),
    ],
)
def test_bad_masks_are_refused(data, message):
    with pytest.raises(GraphError, match=message):
        graph_from_edges([0], [1], **{"num_nodes": 3, **data})


# ---- edge data, and the whole


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"edge_weight": [1.0]}, r"edge_weight must have one row per edge \(2\), got shape .1,"),
        ({"edge_weight": [[1.0], [2.0]]}, r"edge_weight .* got shape .2, 1."),
        ({"edge_weight": [1.0, np.nan]}, "edge_weight must be finite, got nan in row 1"),
        ({"edge_attr": np.zeros((2, 1, 1))}, "edge_attr must have one row per edge"),
        ({"edge_attr": [["a"], ["b"]]}, "edge_attr must hold numbers"),
        ({"edge_type": [0.0, 1.0]}, "edge_type must hold integers"),
        ({"edge_id": [[0], [1]]}, "edge_id must have one row per edge"),
    ],
)
def test_bad_edge_data_is_refused(data, message):
    with pytest.raises(GraphError, match=message):
        Graph(np.array([0, 0, 1, 2]), np.array([0, 1]), **data)


def test_replace_checks_again():
    graph = path3(x=np.zeros((3, 2)))
    assert graph.replace(name="other").name == "other"
    assert graph.replace(name="other").x is graph.x
    with pytest.raises(GraphError, match="x must have shape"):
        graph.replace(x=np.zeros((2, 2)))


def test_graph_fields_are_the_constructor_s():
    assert graph_fields()[:4] == ("indptr", "indices", "x", "y")
    assert "name" in graph_fields()
