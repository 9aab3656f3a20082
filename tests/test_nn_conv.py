"""Our layers equal PyTorch Geometric's of the same name, and load their parameters."""

import pytest
import torch
import torch_geometric.nn as pyg
from awkward import AWKWARD, NUM_CLASSES, NUM_FEATURES, awkward_case

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.graph import CSRFeatures
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.halo.load import load_shard
from gnn_dist.nn.attention import GATConv, GATv2Conv, TransformerConv
from gnn_dist.nn.conv import GCNConv, GINConv, SAGEConv
from gnn_dist.nn.models import MLP, ModelShape, build_model
from gnn_dist.nn.norm import BatchNorm
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition

F, K = NUM_FEATURES, 4
CONVS = {
    "gcn": (lambda: GCNConv(F, K), lambda: pyg.GCNConv(F, K)),
    "sage mean, narrowing": (lambda: SAGEConv(F, K), lambda: pyg.SAGEConv(F, K)),
    "sage mean, widening": (lambda: SAGEConv(F, 9), lambda: pyg.SAGEConv(F, 9)),
    "sage sum": (lambda: SAGEConv(F, K, aggr="add"), lambda: pyg.SAGEConv(F, K, aggr="add")),
    "sage max": (lambda: SAGEConv(F, K, aggr="max"), lambda: pyg.SAGEConv(F, K, aggr="max")),
    "sage bare": (
        lambda: SAGEConv(F, K, root_weight=False, bias=False),
        lambda: pyg.SAGEConv(F, K, root_weight=False, bias=False),
    ),
    "gat concatenated": (lambda: GATConv(F, K, 2), lambda: pyg.GATConv(F, K, 2)),
    "gat averaged": (
        lambda: GATConv(F, K, 3, concat=False),
        lambda: pyg.GATConv(F, K, 3, concat=False),
    ),
    "gatv2": (lambda: GATv2Conv(F, K, 2), lambda: pyg.GATv2Conv(F, K, 2)),
    "gatv2 averaged": (
        lambda: GATv2Conv(F, K, 3, concat=False, share_weights=True, negative_slope=0.1),
        lambda: pyg.GATv2Conv(F, K, 3, concat=False, share_weights=True, negative_slope=0.1),
    ),
    "transformer": (lambda: TransformerConv(F, K, 2), lambda: pyg.TransformerConv(F, K, 2)),
    "transformer averaged": (
        lambda: TransformerConv(F, K, 3, concat=False, beta=True, bias=False),
        lambda: pyg.TransformerConv(F, K, 3, concat=False, beta=True, bias=False),
    ),
    "transformer without roots": (
        lambda: TransformerConv(F, K, 2, root_weight=False),
        lambda: pyg.TransformerConv(F, K, 2, root_weight=False),
    ),
    "gin": (
        lambda: GINConv(MLP(F, K), eps=0.3, train_eps=True),
        lambda: pyg.GINConv(pyg.MLP([F, K, K], norm=None), eps=0.3, train_eps=True),
    ),
}


def load_whole(graph, folder):
    write_partition(graph, Partition([0] * graph.num_nodes, 1), folder)
    return load_shard(folder, World.single()).with_dtype(torch.float64)


@pytest.fixture(params=AWKWARD)
def shard(request, tmp_path):
    return load_whole(awkward_case(request.param, 1).graph, tmp_path / "parts")


@pytest.mark.parametrize("name", CONVS)
def test_layers_equal_those_of_pyg(name, shard):
    ours, theirs = (make().double() for make in CONVS[name])
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = shard.x.clone().requires_grad_()
    y = shard.x.clone().requires_grad_()
    arguments = [shard.edge_weight] if name == "gcn" and shard.edge_weight is not None else []
    out, reference = ours(x, Block(shard.structure)), theirs(y, shard.edge_index, *arguments)
    torch.testing.assert_close(out, reference, rtol=1e-10, atol=1e-10)
    scale = torch.linspace(-1.0, 2.0, out.numel(), dtype=torch.float64).view_as(out)
    (out * scale).sum().backward()
    (reference * scale).sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-10, atol=1e-10)
    names = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, names[key].grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("gcn", lambda: pyg.GCN(F, 6, 3, NUM_CLASSES)),
        ("sage", lambda: pyg.GraphSAGE(F, 6, 3, NUM_CLASSES)),
        ("gin", lambda: pyg.GIN(F, 6, 3, NUM_CLASSES)),
        ("gat", lambda: pyg.GAT(F, 6, 3, NUM_CLASSES, heads=2)),
    ],
)
def test_models_load_the_state_of_pygs_models(name, make, shard):
    theirs = make().double().eval()
    ours = build_model(name, ModelShape(F, 6, NUM_CLASSES, layers=3, heads=2)).double().eval()
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    weight = {"edge_weight": shard.edge_weight} if name == "gcn" else {}
    out = ours(shard.x, [Block(shard.structure)] * 3)
    torch.testing.assert_close(out, theirs(shard.x, shard.edge_index, **weight))


def test_batch_norm_over_all_batches_so_far():
    ours, theirs = BatchNorm(3, World.single().transport), torch.nn.BatchNorm1d(3)
    for layer in (ours, theirs):
        layer.momentum = None
    for _ in range(3):
        x = torch.randn(5, 3)
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gat"])
def test_a_bias_before_batch_norm_is_held_at_zero(name):
    shape = ModelShape(F, 6, NUM_CLASSES, layers=3, heads=2, batch_norm=True)
    model = build_model(name, shape)
    assert [conv.output_bias.requires_grad for conv in model.convs] == [False, False, True]
    assert not model.convs[0].output_bias.any()


def test_batch_norm_between_layers_equals_pygs(tmp_path):
    shard = load_whole(awkward_case("directed", 1).graph, tmp_path / "parts")
    theirs = pyg.GraphSAGE(F, 6, 3, NUM_CLASSES, norm="batch_norm").double()
    shape = ModelShape(F, 6, NUM_CLASSES, layers=3, batch_norm=True)
    ours = build_model("sage", shape, World.single().transport).double()
    state = {key.replace(".module.", "."): value for key, value in theirs.state_dict().items()}
    ours.load_state_dict(state)
    for _ in range(3):
        out = ours.train()(shard.x, [Block(shard.structure)] * 3)
        torch.testing.assert_close(out, theirs.train()(shard.x, shard.edge_index))
    out = ours.eval()(shard.x, [Block(shard.structure)] * 3)
    torch.testing.assert_close(out, theirs.eval()(shard.x, shard.edge_index))


@pytest.mark.parametrize("name", ["gcn", "sage mean, widening", "sage max", "gin", "gat averaged"])
def test_sparse_features_give_what_dense_ones_give(name, tmp_path):
    case = awkward_case("self-loops", 1)
    x = case.graph.x * (abs(case.graph.x) > 0.7)
    rows, columns = x.nonzero()
    indptr = [0, *((rows[:, None] <= range(len(x))).sum(0).tolist())]
    sparse = CSRFeatures(indptr, columns, x[rows, columns], F)
    dense_shard = load_whole(case.graph.replace(x=x), tmp_path / "dense")
    shard = load_whole(case.graph.replace(x=sparse), tmp_path / "sparse")
    torch.testing.assert_close(shard.x, dense_shard.x)
    layer = CONVS[name][0]().double()
    weights = list(layer.parameters())
    by_kind = []
    for features in (dense_shard.features, shard.features):
        out = layer(features, Block(shard.structure))
        by_kind.append((out, *torch.autograd.grad(out.square().sum(), weights)))
    for one, other in zip(*by_kind, strict=True):
        torch.testing.assert_close(one, other)


def test_aggregate_refuses_what_does_not_fit(tmp_path):
    shard = load_whole(awkward_case("directed", 1).graph, tmp_path / "parts")
    block, weight = Block(shard.structure), torch.ones(shard.num_edges, dtype=torch.float64)
    with pytest.raises(ConfigError, match="reduce must be one of sum, mean, max, min"):
        aggregate(shard.x, block, reduce="median")
    with pytest.raises(ConfigError, match="weights are for sum and mean"):
        aggregate(shard.x, block, reduce="max", weight=weight)
    with pytest.raises(GraphError, match="x must have 26 rows"):
        aggregate(shard.x[1:], block)
    with pytest.raises(GraphError, match="one row per edge"):
        aggregate(shard.x, block, weight=weight[1:])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("sagr", {}, "did you mean 'sage'"),
        ("gat", {"heads": 4}, "heads must divide hidden=6"),
        ("gcn", {"layers": 0}, "layers must be at least 1"),
        ("sage", {"aggr": "median"}, "aggr must be one of"),
        ("sage", {"dropout": 1.5}, r"dropout must lie in \[0, 1\]"),
    ],
)
def test_build_model_refuses(name, change, message):
    with pytest.raises(ConfigError, match=message):
        build_model(
            name, ModelShape(**{"in_channels": F, "hidden": 6, "out_channels": 2, **change})
        )
