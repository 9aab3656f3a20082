"""Attention layers on several ranks compute what they compute on one."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, NUM_FEATURES, awkward_case

from gnn_dist.comm.world import World
from gnn_dist.halo.block import Block
from gnn_dist.halo.load import load_shard
from gnn_dist.nn.attention import GATConv, GATv2Conv, TransformerConv
from gnn_dist.nn.dropout import Dropout, set_step
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.full_batch import exact_blocks

pytestmark = pytest.mark.mpi

LAYERS = {
    "gat": lambda: GATConv(NUM_FEATURES, 3, 2, dropout=0.4),
    "gatv2": lambda: GATv2Conv(NUM_FEATURES, 3, 2, dropout=0.4),
    "transformer": lambda: TransformerConv(NUM_FEATURES, 3, 2, dropout=0.4),
}


def one_step(world, folder, name):
    """Forward and backward of a layer; rows by original id, and gradients of all ranks together."""
    shard = load_shard(folder, world).with_dtype(torch.float64)
    torch.manual_seed(3)
    layer = LAYERS[name]().double()
    set_step(layer.train(), seed=5, step=7)
    [block] = exact_blocks(shard, world.transport, layers=1, halo="overlap")
    x = shard.x.clone().requires_grad_()
    out = layer(x, block)
    # A loss that does not depend on the order of rows.
    loss = (out.square() * (1 + shard.node_id[:, None] % 3)).sum()
    [again] = torch.autograd.grad(loss, x, retain_graph=True)
    loss.backward()
    total = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    world.transport.all_reduce(total).wait()
    return [t.numpy() for t in (shard.node_id, out.detach(), again, x.grad, total)]


def all_steps(world, folders):
    return {
        (graph, name): one_step(world, folder, name)
        for graph, folder in folders.items()
        for name in LAYERS
    }


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_compute_what_one_rank_computes(world_size, tmp_path):
    whole, split = {}, {}
    for name in AWKWARD:
        _, graph, partition = awkward_case(name, 3)
        whole[name], split[name] = tmp_path / f"{name}-1", tmp_path / f"{name}-3"
        write_partition(graph, Partition(np.zeros(graph.num_nodes, int), 1), whole[name])
        write_partition(graph, partition, split[name])
    [expected] = run_ranks(all_steps, 1, whole, timeout_s=100.0)
    by_rank = run_ranks(all_steps, world_size, split, timeout_s=100.0)
    for key, (ids, *rows, total) in expected.items():
        parts = [steps[key] for steps in by_rank]
        order = np.argsort(np.concatenate([part[0] for part in parts]))
        for number, one in enumerate(rows, 1):
            many = np.concatenate([part[number] for part in parts])[order]
            np.testing.assert_allclose(
                many, one[np.argsort(ids)], rtol=1e-10, atol=1e-10, err_msg=key
            )
        np.testing.assert_allclose(parts[0][-1], total, rtol=1e-10, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("name", LAYERS)
def test_dropout_drops_in_training_alone(name, tmp_path):
    graph = awkward_case("duplicate edges", 1).graph
    write_partition(graph, Partition([0] * graph.num_nodes, 1), tmp_path / "parts")
    shard = load_shard(tmp_path / "parts", World.single()).with_dtype(torch.float64)
    block, layer = Block(shard.structure), LAYERS[name]().double()
    set_step(layer, seed=1, step=1)
    one, other = layer(shard.x, block), layer(shard.x, block)
    assert not torch.equal(one, other)  # another use, other draws
    set_step(layer, seed=1, step=1)
    assert torch.equal(layer(shard.x, block), one)
    assert torch.equal(layer.eval()(shard.x, block), layer(shard.x, block))
    for module in layer.train().modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    assert torch.equal(layer(shard.x, block), layer.eval()(shard.x, block))
