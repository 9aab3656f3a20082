"""Training on active nodes alone gives the loss and gradients of training on all."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case

from gnn_dist.errors import ConfigError
from gnn_dist.graph import graph_from_edges
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.halo.prune import active_layers
from gnn_dist.nn.models import MODELS, ModelShape, build_model
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.full_batch import FullBatch, TrainingSet
from gnn_dist.train.task import make_task

pytestmark = pytest.mark.mpi

# 0 <- 1 <- 2 <- ... <- 9: node i reads node i + 1. Ranks own 0-3, 4-6, 7-9.
CHAIN = graph_from_edges(range(1, 10), range(9), num_nodes=10, x=np.eye(10))
THREE = Partition([0, 0, 0, 0, 1, 1, 1, 2, 2, 2], 3)


def layers_of_chain(world, folder):
    shard = load_shard(folder, world)
    wanted = shard.node_id == 2
    active = active_layers(shard.structure, shard.plan, wanted, layers=3, transport=world.transport)
    return {
        "inputs": shard.node_id[active.inputs].tolist(),
        "outputs": shard.node_id[active.outputs].tolist(),
        "sources": [structure.src_id.tolist() for structure in active.structures],
        "destinations": [structure.dst_id.tolist() for structure in active.structures],
        "sent": [plan.send_id.tolist() for plan in active.plans],
        "halo": [plan.halo_id.tolist() for plan in active.plans],
    }


def test_three_layers_of_a_chain(tmp_path):
    write_partition(CHAIN, THREE, tmp_path / "parts")
    first, second, third = run_ranks(layers_of_chain, 3, tmp_path / "parts")
    # Wanted: node 2. It reads 3, that reads 4 (of rank 1), that reads 5.
    assert first["outputs"] == [2]
    assert first["inputs"] == [2, 3]
    assert first["destinations"] == [[2, 3], [2, 3], [2]]
    assert first["sources"] == [[2, 3, 4], [2, 3, 4], [2, 3]]
    assert first["halo"] == [[4], [4], []]
    assert second["outputs"] == []
    assert second["inputs"] == [4, 5]
    assert second["destinations"] == [[4], [], []]
    assert second["sent"] == [[4], [4], []]
    assert third == {
        "inputs": [],
        "outputs": [],
        "sources": [[], [], []],
        "destinations": [[], [], []],
        "sent": [[], [], []],
        "halo": [[], [], []],
    }


def of_all(world, folders, prune):
    """Return what `two_steps` does for each folder."""
    return {name: two_steps(world, folder, prune) for name, folder in folders.items()}


def two_steps(world, folder, prune):
    """Return losses, parameters after two steps, and predictions, for each kind of model."""
    shard = load_shard(folder, world)
    task = make_task(shard, 0, world)
    out = {}
    for name in MODELS:
        torch.manual_seed(0)
        shape = ModelShape(shard.x.size(1), 8, task.num_classes, layers=3, dropout=0.5, heads=2)
        model = build_model(name, shape).double()
        full_batch = FullBatch(
            model,
            shard,
            world,
            training=TrainingSet(shard, task, prune),
            halo=HaloPolicy(),
            seed=5,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reports = [full_batch.step(optimizer, epoch) for epoch in range(2)]
        values = [torch.tensor([r.loss for r in reports], dtype=torch.float64)]
        values += [p.detach().flatten() for p in model.parameters()]
        sent = torch.tensor(reports[1].halo_bytes)
        world.transport.all_reduce(sent).wait()
        out[name] = torch.cat(values).numpy(), int(sent)
    return out


@pytest.mark.parametrize("world_size", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_losses_and_parameters_are_those_of_all_nodes(world_size, tmp_path):
    folders = {name: tmp_path / name for name in AWKWARD}
    for name, folder in folders.items():
        _, graph, partition = awkward_case(name, 3)
        write_partition(graph, partition, folder)
    whole, pruned = (
        run_ranks(of_all, world_size, folders, prune, timeout_s=100.0)[0] for prune in (False, True)
    )
    for name in AWKWARD:
        for model in MODELS:
            what = f"{name}: {model}"
            one, other = whole[name][model][0], pruned[name][model][0]
            np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10, err_msg=what)


def test_fewer_rows_travel(tmp_path):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 400, (2, 1200))
    train = np.arange(400) < 4
    graph = graph_from_edges(
        src, dst, num_nodes=400, x=rng.random((400, 5)), y=rng.integers(0, 3, 400), train_mask=train
    )
    write_partition(graph, Partition(np.arange(400) % 3, 3), tmp_path / "parts")
    whole, pruned = (run_ranks(two_steps, 3, tmp_path / "parts", p)[0] for p in (False, True))
    for model in MODELS:
        np.testing.assert_allclose(pruned[model][0], whole[model][0], rtol=1e-10, atol=1e-10)
        assert 0 < pruned[model][1] < 0.5 * whole[model][1], model


def test_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="batch norm counts: drop --prune or --batch-norm"):
        TrainConfig(prune=True, batch_norm=True)
