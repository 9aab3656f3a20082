"""P ranks compute what one process computes: outputs, loss and every gradient, on any partition."""

import numpy as np
import pytest
import torch
from awkward import AWKWARD, NUM_CLASSES, NUM_FEATURES, awkward_case

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import MODELS, ModelShape, build_model
from gnn_dist.partition import Partition
from gnn_dist.partitioners import partition_graph
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
# Attention needs all in-edges of a node on one rank.
OVER_CLONES = [("sage", "sum"), *(variant for variant in VARIANTS if variant[0] != "gat")]
CUTS = ("libra", "dbh")


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
    logits = model(x, blocks)[: shard.num_owned]
    loss = node_loss(logits, task.y, task.masks["train"], task.num_train)
    loss.backward()
    total = torch.cat(
        [loss.detach().view(1), *(p.grad.flatten() for p in model.parameters() if p.requires_grad)]
    )
    world.transport.all_reduce(total).wait()
    statistics = torch.cat([buffer.flatten().double() for buffer in model.buffers()])
    ids = shard.structure.src_id
    tensors = (ids[: shard.num_owned], logits.detach(), ids[: len(x)], x.grad, total, statistics)
    return [t.cpu().numpy() for t in tensors]


def by_original_id(results):
    """Put the rows of all ranks in the order of original ids; all ranks hold the same totals.

    Gradients of clones of a node are added up: each is of its own copy of the input.
    """
    owned, logits, local, grads = (np.concatenate([r[i] for r in results]) for i in range(4))
    grad = np.zeros((len(owned), grads.shape[1]))
    np.add.at(grad, local, grads)
    for result in results[1:]:
        np.testing.assert_array_equal(result[4], results[0][4])
        np.testing.assert_array_equal(result[5], results[0][5])
    return [logits[np.argsort(owned)], grad, *results[0][4:]]


def all_steps(world, folders, halo, variants):
    return {
        (name, model, aggr): one_step(world, folder, model, aggr, halo)
        for name, folder in folders.items()
        for model, aggr in variants
        # Attention needs all rows at once.
        if model != "gat" or not HaloPolicy.parse(halo).in_pieces
    }


def cut_nodes(graph, method):
    """Give the edges of a graph to four parts, of which some are empty where it is too small."""
    if graph.num_nodes >= 4:
        return partition_graph(graph, 4, method)
    last = (np.full(count, 3) for count in (graph.num_edges, graph.num_nodes))
    return EdgePartition(*last, 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every awkward graph, in one part and in four."""
    # Under mpirun each process writes its own copy.
    root = tmp_path_factory.mktemp("awkward")
    whole, split = {}, {}
    cut = {method: {} for method in CUTS}
    for name in AWKWARD:
        _, graph, partition = awkward_case(name, 4)
        whole[name], split[name] = root / f"{name}-1", root / f"{name}-4"
        write_partition(graph, Partition(np.zeros(graph.num_nodes, int), 1), whole[name])
        write_partition(graph, partition, split[name])
        for method in CUTS:
            cut[method][name] = root / f"{name}-{method}"
            write_partition(graph, cut_nodes(graph, method), cut[method][name])
    return whole, split, cut


@pytest.fixture(scope="module")
def expected(folders):
    """What one process computes on the graph in one part."""
    variants = [("sage", "sum"), *VARIANTS]
    [steps] = run_ranks(all_steps, 1, folders[0], "blocking", variants, timeout_s=100.0)
    return {key: by_original_id([step]) for key, step in steps.items()}


def cases(values, quick):
    """Every value at one to four ranks; all but the quick ones are slow."""
    return [
        pytest.param(size, value, marks=[] if (size, value) in quick else pytest.mark.slow)
        for value in values
        for size in (1, 2, 3, 4)
    ]


REMAT = "remat:buffer=600"
QUICK = [(1, "overlap"), (2, "overlap"), (3, REMAT)]


@pytest.mark.parametrize(("world_size", "halo"), cases(["blocking", "overlap", REMAT], QUICK))
def test_ranks_compute_what_one_process_computes(world_size, halo, folders, expected):
    by_rank = run_ranks(all_steps, world_size, folders[1], halo, VARIANTS, timeout_s=100.0)
    compare(by_rank, expected)


@pytest.mark.parametrize(("world_size", "method"), cases(CUTS, [(2, "dbh")]))
def test_so_do_ranks_that_have_clones(world_size, method, folders, expected):
    variants = VARIANTS if world_size == 1 else OVER_CLONES
    if method == "dbh":  # the maximum is dear, and once is enough
        variants = [variant for variant in variants if variant[1] != "max"]
    halo = "blocking" if world_size == 3 else "overlap"
    folders = folders[2][method]
    compare(run_ranks(all_steps, world_size, folders, halo, variants, timeout_s=100.0), expected)


def compare(by_rank, expected):
    """Compare what ranks computed with what one process did."""
    for key in by_rank[0]:
        got, reference = by_original_id([steps[key] for steps in by_rank]), expected[key]
        for what, one, many in zip(
            ("outputs", "input gradients", "loss and gradients", "batch norm"),
            reference,
            got,
            strict=True,
        ):
            np.testing.assert_allclose(
                many, one, rtol=TOLERANCE, atol=TOLERANCE, err_msg=f"{key}: {what}"
            )
