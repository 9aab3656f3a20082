from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gnn_dist.errors import GraphError
from gnn_dist.graph import CSRFeatures, graph_from_edges
from gnn_dist.interop import graph_from_dgl, graph_from_pyg, graph_to_pyg

EDGES = torch.tensor([[2, 0, 1, 0], [0, 1, 2, 1]])


def test_pyg_edges_run_from_row_0_to_row_1_and_carry_their_data():
    data = Data(
        edge_index=EDGES,
        num_nodes=4,
        edge_weight=torch.tensor([1.0, 2, 3, 4], dtype=torch.float64),
        edge_attr=torch.arange(8).reshape(4, 2),
        edge_type=torch.tensor([5, 6, 7, 8], dtype=torch.uint8),
    )
    graph = graph_from_pyg(data, name="toy")
    assert graph.name == "toy"
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4]
    assert graph.indices.tolist() == [2, 0, 0, 1]
    assert graph.edge_id.tolist() == [0, 1, 3, 2]
    assert graph.edge_weight.tolist() == [1, 2, 4, 3]
    assert graph.edge_weight.dtype == np.float64
    assert graph.edge_attr.tolist() == [[0, 1], [2, 3], [6, 7], [4, 5]]
    assert graph.edge_type.tolist() == [5, 6, 8, 7]
    assert graph.edge_type.dtype == np.uint8


def test_one_dimensional_edge_attr_becomes_a_column():
    graph = graph_from_pyg(Data(edge_index=EDGES, edge_attr=torch.tensor([1.0, 2, 3, 4])))
    assert graph.edge_attr.tolist() == [[1], [2], [4], [3]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_node_data_keep_their_dtype_and_memory(dtype):
    x = torch.rand(3, 2).to(dtype)
    data = Data(x=x, edge_index=EDGES, y=torch.tensor([0, 1, -1]), train_mask=torch.ones(3) > 2)
    graph = graph_from_pyg(data)
    assert graph.x.dtype == x.numpy().dtype
    assert graph.x.ctypes.data == x.data_ptr()
    assert graph.y.tolist() == [0, 1, -1]
    assert graph.train_mask.tolist() == [False] * 3


def test_several_labels_a_node():
    graph = graph_from_pyg(Data(edge_index=EDGES, y=torch.tensor([[1.0, 0], [0, 1], [1, 1]])))
    assert graph.task == "multilabel"
    assert graph.y.dtype == bool


def test_number_of_nodes_comes_from_labels_where_pyg_would_overlook_them():
    assert graph_from_pyg(Data(edge_index=EDGES, y=torch.zeros(5).long())).num_nodes == 5
    assert graph_from_pyg(Data(edge_index=EDGES)).num_nodes == 3
    assert graph_from_pyg(Data(edge_index=EDGES, pos=torch.zeros(6, 2))).num_nodes == 6


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_features_stay_sparse(layout):
    dense = torch.tensor([[0, 1.5], [0, 0], [2, 0]])
    x = dense.to_sparse_coo() if layout == "coo" else dense.to_sparse_csr()
    graph = graph_from_pyg(Data(x=x, edge_index=EDGES))
    assert isinstance(graph.x, CSRFeatures)
    assert (graph.x.to_dense() == dense.numpy()).all()


def test_tensors_that_need_gradients_and_input_that_must_not_change():
    edge_index = EDGES.clone()
    data = Data(x=torch.ones(3, 1, requires_grad=True), edge_index=edge_index)
    assert graph_from_pyg(data).x.tolist() == [[1], [1], [1]]
    assert (edge_index == EDGES).all()
    assert set(data.keys()) == {"x", "edge_index"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (HeteroData(), r"must be homogeneous.*data\.to_homogeneous\(\)"),
        (Data(x=torch.eye(2)), r"must hold edge_index, got no edges"),
        (Data(adj_t=torch.eye(2), num_nodes=2), r"got adj_t .* torch\.stack\(data\.adj_t\.t\(\)"),
        (Data(edge_index=torch.zeros(3, 2).long(), num_nodes=3), r"shape \(2, E\), got \(3, 2\)"),
        (Data(edge_index=EDGES, num_nodes=2), r"edge 0 \(2 -> 0\) ends at a node that does not"),
        (Data(edge_index=EDGES.float(), num_nodes=3), "src must be an integer vector"),
        (Data(edge_index=EDGES, x=torch.zeros(3, 1).bfloat16()), "x must have a dtype that NumPy"),
        (Data(edge_index=EDGES, edge_attr=torch.eye(3)), "edge_attr must have one row per edge"),
        (Data(edge_index=EDGES, y=[0, 1, 0], num_nodes=3), "y must be a tensor or an array, got l"),
        (Data(edge_index=EDGES, y=torch.eye(3).to_sparse(), num_nodes=3), "y must be dense, got"),
    ],
)
def test_pyg_data_that_cannot_be_taken(data, message):
    with pytest.raises(GraphError, match=message):
        graph_from_pyg(data)


def assert_same(first, second):
    for name in ("indptr", "indices", "y", "train_mask", "edge_id", "edge_weight", "edge_attr"):
        a, b = getattr(first, name), getattr(second, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert a.dtype == b.dtype, name
            assert np.array_equal(a, b), name


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_graph_to_pyg_and_back(data):
    num_nodes = data.draw(st.integers(1, 6))
    node = st.integers(0, num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=8))
    src, dst = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    fields = {
        "x": np.arange(2 * num_nodes, dtype=dtype).reshape(-1, 2),
        "y": np.arange(num_nodes),
        "train_mask": np.arange(num_nodes) % 2 == 0,
        "edge_weight": np.arange(len(pairs), dtype=dtype),
        "edge_attr": np.arange(3 * len(pairs), dtype=np.float32).reshape(-1, 3),
    }
    kept = data.draw(st.sets(st.sampled_from(sorted(fields))))
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, **{k: fields[k] for k in sorted(kept)})
    pyg = graph_to_pyg(graph)
    assert pyg.edge_index.dtype == torch.int64
    assert pyg.num_nodes == num_nodes
    back = graph_from_pyg(pyg)
    assert_same(graph, back)
    if "x" in kept:
        assert back.x.dtype == dtype
        assert np.array_equal(back.x, graph.x)


def test_pyg_to_graph_and_back_is_the_same_edges_by_edge_id():
    weight = torch.tensor([0.5, 1.5, 2.5, 3.5])
    data = graph_to_pyg(graph_from_pyg(Data(edge_index=EDGES, edge_weight=weight, num_nodes=3)))
    order = data.edge_id.argsort()
    assert (data.edge_index[:, order] == EDGES).all()
    assert (data.edge_weight[order] == weight).all()


def test_csr_features_to_pyg_dense_or_sparse():
    x = CSRFeatures(np.array([0, 1, 1, 2]), np.array([1, 0]), None, 2)
    graph = graph_from_edges([0], [1], x=x)
    assert graph_to_pyg(graph).x.tolist() == [[0, 1], [0, 0], [1, 0]]
    sparse = graph_to_pyg(graph, sparse_x=True)
    assert sparse.x.layout == torch.sparse_csr
    back = graph_from_pyg(sparse).x
    assert (back.indptr.tolist(), back.indices.tolist()) == ([0, 1, 1, 2], [1, 0])
    assert back.data.tolist() == [1, 1]


def test_read_only_arrays_are_copied():
    x = np.eye(2, dtype=np.float32)
    x.flags.writeable = False
    data = graph_to_pyg(graph_from_edges([0], [1], x=x))
    data.x += 1
    assert x.tolist() == [[1, 0], [0, 1]]


def dgl_graph(src, dst, num_nodes, *, ndata=None, edata=None, **changes):
    """Return what of a `dgl.DGLGraph` is read, so that DGL need not be installed."""
    ends = torch.tensor(src), torch.tensor(dst)
    members = {
        "is_block": False,
        "ntypes": ["_N"],
        "etypes": ["_E"],
        "num_nodes": lambda: num_nodes,
        "edges": lambda order: {"eid": ends}[order],
        "ndata": ndata or {},
        "edata": edata or {},
    }
    return SimpleNamespace(**members | changes)


def test_dgl_graph_with_everything():
    graph = graph_from_dgl(
        dgl_graph(
            [1, 0],
            [2, 1],
            4,
            ndata={
                "feat": torch.ones(4, 2, dtype=torch.float64),
                "label": torch.tensor([0, 1, 1, 0]),
                "train_mask": torch.tensor([1, 0, 0, 1], dtype=torch.uint8),
                "other": torch.zeros(4),
            },
            edata={
                "weight": torch.tensor([0.5, 2.0]),
                "feat": torch.eye(2),
                "etype": torch.arange(2),
            },
        ),
        name="toy",
    )
    assert graph.name == "toy"
    assert graph.indptr.tolist() == [0, 0, 1, 2, 2]
    assert graph.x.dtype == np.float64
    assert graph.y.tolist() == [0, 1, 1, 0]
    assert graph.train_mask.tolist() == [True, False, False, True]
    assert graph.edge_id.tolist() == [1, 0]
    assert graph.edge_weight.tolist() == [2, 0.5]
    assert graph.edge_attr.tolist() == [[0, 1], [1, 0]]
    assert graph.edge_type.tolist() == [1, 0]


def test_bare_dgl_graph_keeps_isolated_nodes():
    graph = graph_from_dgl(dgl_graph([0], [1], 5))
    assert (graph.num_nodes, graph.x, graph.y, graph.edge_id) == (5, None, None, None)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (dgl_graph([0], [1], 2, is_block=True), "must be a whole graph, got a DGL block"),
        (dgl_graph([0], [1], 2, etypes=["a", "b"]), r"homogeneous.*\['a', 'b'\].*to_homogeneous"),
        (dgl_graph([0], [1], 2, ntypes=["u", "v"]), r"homogeneous, got node types \['u', 'v'\]"),
        (
            dgl_graph([0], [1], 2, ndata={"feat": torch.eye(2), "x": torch.eye(2)}),
            "ndata must hold x once, got 'feat' and 'x': drop one",
        ),
        (
            dgl_graph([0], [1], 2, ndata={"feat": torch.eye(2).bfloat16()}),
            r"ndata\['feat'\] must have a dtype that NumPy knows",
        ),
    ],
)
def test_dgl_graphs_that_cannot_be_taken(graph, message):
    with pytest.raises(GraphError, match=message):
        graph_from_dgl(graph)
