"""What shares or reuses memory: constant rows, sums onto other rows, outputs changed in place."""

import numpy as np
import pytest
import torch
from awkward import awkward_case

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.graph import CSRFeatures
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block, Constant
from gnn_dist.halo.load import load_shard
from gnn_dist.nn.conv import GCNConv, GINConv, SAGEConv
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import MLP, MODELS, ModelShape, build_model
from gnn_dist.ops.draws import DrawKey, dropout_by_id
from gnn_dist.ops.linear import linear
from gnn_dist.ops.native import kernels
from gnn_dist.ops.rows import gather_rows
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.train.full_batch import exact_blocks

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


def load_whole(graph, folder):
    write_partition(graph, Partition([0] * graph.num_nodes, 1), folder)
    return load_shard(folder, World.single())


@pytest.fixture(params=["random partition", "directed", "edge-weighted"])
def shard(request, tmp_path):
    return load_whole(awkward_case(request.param, 1).graph, tmp_path / "parts")


def with_sparse_features(graph):
    x = np.where(np.abs(graph.x) > 0.5, graph.x, 0.0)
    rows, columns = x.nonzero()
    indptr = np.searchsorted(rows, np.arange(graph.num_nodes + 1))
    return graph.replace(x=CSRFeatures(indptr, columns, x[rows, columns], x.shape[1]))


@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_a_step_in_every_precision(name, precision, features, tmp_path):
    graph = awkward_case("random partition", 1).graph
    if features == "sparse":
        graph = with_sparse_features(graph)
    shard = load_whole(graph, tmp_path / "parts").with_dtype(DTYPES[precision])
    wide = torch.promote_types(DTYPES[precision], torch.float32)
    losses = {}
    for hidden in (3, 40):  # transform before the sum, and after
        shape = ModelShape(graph.num_features, 4 * hidden, 3, layers=3, dropout=0.5, heads=2)
        model = build_model(name, shape).to(wide)
        set_step(model, seed=0, step=0)
        blocks = exact_blocks(shard, World.single().transport, layers=3, halo="overlap")
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            for _ in range(2):
                losses[hidden] = model(shard.features, blocks).float().square().mean()
                losses[hidden].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            assert model.eval()(shard.features, blocks).isfinite().all()


def test_constant_rows_are_aggregated_once_with_the_same_result(shard):
    x = shard.features
    constant = Constant(x)
    plain, block = Block(shard.structure), Block(shard.structure, constant=constant)
    layers = [SAGEConv(5, 4), SAGEConv(5, 9), GCNConv(5, 4), GINConv(MLP(5, 4))]
    for layer in [*layers, *layers]:
        layer = layer.to(x.dtype)
        torch.testing.assert_close(layer(x, block), layer(x, plain))
    assert len(constant.made) == 3  # the mean, GCN's sum, the sum
    other = x.clone()
    torch.testing.assert_close(aggregate(other, block), aggregate(x, plain))


def test_constant_rows_that_change_are_found_out(shard):
    block = Block(shard.structure, constant=Constant(shard.features.clone()))
    rows = block.constant.rows
    aggregate(rows, block, reduce="mean").add_(1.0)
    with pytest.raises(GraphError, match="must not be changed in place"):
        aggregate(rows, block, reduce="mean")
    aggregate(rows, block)
    rows.mul_(2.0)
    with pytest.raises(GraphError, match="must not be changed in place"):
        aggregate(rows, block)


def test_constant_rows_first_used_in_inference_can_be_trained_on(shard):
    x = shard.features
    layer = SAGEConv(5, 9).to(x.dtype)
    block = Block(shard.structure, constant=Constant(x))
    with torch.inference_mode():
        layer(x, block)
    layer(x, block).sum().backward()
    assert layer.lin_l.weight.grad.isfinite().all()


def test_a_sum_onto_its_own_sources_is_that_onto_a_copy(shard):
    x, block = shard.features, Block(shard.structure)
    expected = x + aggregate(x, block)
    for onto in (x.clone(), x):
        source = onto
        torch.testing.assert_close(aggregate(source, block, onto=onto), expected)


def test_outputs_may_be_changed_in_place(shard):
    x = shard.features.clone().requires_grad_()
    block, ids = Block(shard.structure), shard.node_id
    outputs = (
        lambda: aggregate(x, block),
        lambda: aggregate(x.unsqueeze(1), block).squeeze(1),
        lambda: gather_rows(x, ids % len(x)),
        lambda: dropout_by_id(x, ids, 0.5, DrawKey(0, 0, 0)),
        lambda: linear(x, torch.eye(5, dtype=x.dtype)),
        lambda: GCNConv(5, 5, bias=False).to(x.dtype)(x, block),
    )
    for output in outputs:
        x.grad = None
        torch.manual_seed(0)
        output().add_(1.0).mul_(2.0).sum().backward()
        changed = x.grad.clone()
        x.grad = None
        torch.manual_seed(0)
        (2.0 * (output() + 1.0)).sum().backward()
        torch.testing.assert_close(changed, x.grad)


def test_weights_by_head_must_fit(shard):
    x, block = shard.features, Block(shard.structure)
    weight = torch.ones(shard.num_edges, 2, dtype=x.dtype)
    for rows in (x, x.unsqueeze(1)):
        with pytest.raises(GraphError, match=r"weight must be \(edges,\)"):
            aggregate(rows, block, weight=weight)


def test_probabilities_and_dtypes_are_checked():
    for p in (-0.5, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="must lie in"):
            dropout_by_id(torch.ones(2, 2), torch.arange(2), p, DrawKey(0, 0, 0))
    with pytest.raises(ConfigError, match="floating-point"):
        linear(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2))


@pytest.mark.kernels
def test_sizes_that_overflow_and_rows_that_overlap_are_value_errors():
    x = torch.ones(2, 4)
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1], dtype=torch.int32)
    position = torch.tensor([0, 1], dtype=torch.int32)
    calls = (
        lambda: kernels.empty_rows(x, 2**32, 2**30 + 1),
        lambda: kernels.empty_rows(x, 2**40, 2**19),
        lambda: kernels.keep_mask(torch.arange(1024), 0, 2**54 + 2**11, 5),
        lambda: kernels.spmm_add(torch.zeros(1, 4).expand(2, 4), indptr, indices, x),
        lambda: kernels.spmm(indptr, indices, x, None, position),
        lambda: kernels.sddmm(indptr, indices, x[:, :0], x[:, :0], 2**61),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"."):
            call()
