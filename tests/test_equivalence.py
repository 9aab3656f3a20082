"""P ranks compute what one process computes: outputs, loss and every gradient, on any partition."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, NUM_CLASSES, NUM_FEATURES, awkward_case

from gnn_dist.halo.load import load_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import MODELS, ModelShape, build_model
from gnn_dist.partition import Partition
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.full_batch import exact_blocks
from gnn_dist.train.task import make_task, node_loss

pytestmark = pytest.mark.mpi

TOLERANCE = 1e-10
VARIANTS = [
    (model, aggr)
    for model in MODELS
    for aggr in (("mean", "max") if model == "sage" else ("mean",))
]


def one_step(world, folder, model_name, aggr, halo):
    """Forward and backward of a model with everything that could depend on the partition."""
    shard = load_shard(folder, world).with_dtype(torch.float64)
    task = make_task(shard, 0, world)
    torch.manual_seed(3)
    shape = ModelShape(
        NUM_FEATURES, 8, NUM_CLASSES, layers=3, dropout=0.4, heads=2, aggr=aggr, batch_norm=True
    )
    model = build_model(model_name, shape, world.transport).double().to(shard.node_id.device)
    set_step(model.train(), seed=5, step=7)
    blocks = exact_blocks(shard, world.transport, layers=3, halo=halo)
    x = shard.x.clone().requires_grad_()
    logits = model(x, blocks)
    loss = node_loss(logits, task.y, task.masks["train"], task.num_train)
    loss.backward()
    total = torch.cat(
        [loss.detach().view(1), *(p.grad.flatten() for p in model.parameters() if p.requires_grad)]
    )
    world.transport.all_reduce(total).wait()
    statistics = torch.cat([buffer.flatten().double() for buffer in model.buffers()])
    return [t.cpu().numpy() for t in (shard.node_id, logits.detach(), x.grad, total, statistics)]


def by_original_id(results):
    """Put the rows of all ranks in the order of original ids; all ranks hold the same totals."""
    order = np.argsort(np.concatenate([r[0] for r in results]))
    rows = [np.concatenate([r[i] for r in results])[order] for i in (1, 2)]
    for result in results[1:]:
        np.testing.assert_array_equal(result[3], results[0][3])
    return [*rows, results[0][3], results[0][4]]


def all_steps(world, folders, halo):
    return {
        (name, model, aggr): one_step(world, folder, model, aggr, halo)
        for name, folder in folders.items()
        for model, aggr in VARIANTS
        # Attention needs all rows at once.
        if model != "gat" or not HaloPolicy.parse(halo).in_pieces
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every awkward graph, in one part and in four."""
    # Under mpirun each process writes its own copy.
    root = tmp_path_factory.mktemp("awkward")
    whole, split = {}, {}
    for name in AWKWARD:
        _, graph, partition = awkward_case(name, 4)
        whole[name], split[name] = root / f"{name}-1", root / f"{name}-4"
        write_partition(graph, Partition(np.zeros(graph.num_nodes, int), 1), whole[name])
        write_partition(graph, partition, split[name])
    return whole, split


@pytest.fixture(scope="module")
def expected(folders):
    """What one process computes on the graph in one part."""
    [steps] = run_ranks(all_steps, 1, folders[0], "blocking", timeout_s=100.0)
    return {key: by_original_id([step]) for key, step in steps.items()}


@pytest.mark.parametrize("halo", ["blocking", "overlap", "remat:buffer=600"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_compute_what_one_process_computes(world_size, halo, folders, expected):
    by_rank = run_ranks(all_steps, world_size, folders[1], halo, timeout_s=100.0)
    for key in by_rank[0]:
        reference = expected[key]
        got = by_original_id([steps[key] for steps in by_rank])
        for what, one, many in zip(
            ("outputs", "input gradients", "loss and gradients", "batch norm"),
            reference,
            got,
            strict=True,
        ):
            np.testing.assert_allclose(
                many, one, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{key}: {what}"
            )
