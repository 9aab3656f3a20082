"""Halo rows in pieces: memory within the buffer, what travels how often, refusals, dead ranks."""

import math
import os

import numpy as np
import pytest
import torch
from awkward import awkward_case
from torch_geometric.nn import GATv2Conv, SAGEConv

from gnn_dist.datasets import load_dataset
from gnn_dist.errors import ConfigError, RankError
from gnn_dist.graph import graph_from_edges
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import ExchangeMaker, halo_exchange
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.pieces import each_piece, give_back
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.parallel.parallelize import parallelize
from gnn_dist.partition import Partition
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks
from gnn_dist.train.full_batch import FullBatch, TrainingSet
from gnn_dist.train.task import make_task

pytestmark = pytest.mark.mpi

NODES, WIDTH, BUFFER = 3000, 32, 64 << 10


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A symmetric and a directed graph at random in three parts: nearly all others are halo."""
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, NODES, (2, 10 * NODES))
    root = tmp_path_factory.mktemp("remat")
    for name, symmetrize in (("symmetric", True), ("directed", False)):
        graph = graph_from_edges(src, dst, num_nodes=NODES, symmetrize=symmetrize)
        partition = Partition(rng.integers(0, 3, NODES), 3, method="random")
        write_partition(graph, partition, root / name)
    return root


def made(world, shard, policy, layer=0):
    meter = Meter()
    exchange = ExchangeMaker(shard.plan, world.transport, policy, meter=meter).at(layer)
    return Block(shard.structure, exchange), meter


def peaks(world, folder, policy):
    """Return the most memory that each kind of aggregation has held, and all that was sent."""
    shard = load_shard(folder, world)
    held, results = {}, {}
    cases = (("sum", None), ("mean", None), ("max", None), ("sum", torch.ones(shard.num_edges)))
    for layer, (reduce, weight) in enumerate(cases):
        block, meter = made(world, shard, policy, layer)
        x = torch.sin(shard.node_id[:, None] * torch.arange(1.0, 1 + WIDTH)).requires_grad_()
        if weight is not None:
            weight.requires_grad_()
        out = aggregate(x, block, reduce=reduce, weight=weight)
        (out * torch.cos(x.detach())).sum().backward()
        held[layer] = meter.peak_held_bytes
        results[layer] = [out.detach(), x.grad, *([] if weight is None else [weight.grad])]
        del out
        meter.reset()
        assert meter.peak_held_bytes == 0  # nothing is kept
    return held, results


@pytest.mark.parametrize("name", ["symmetric", "directed"])
@pytest.mark.parametrize("encode", ["", "+bf16"])
def test_memory_stays_within_the_buffer(name, encode, folders):
    bounded = run_ranks(peaks, 3, folders / name, f"remat:buffer={BUFFER}{encode}")
    free = run_ranks(peaks, 3, folders / name, f"overlap{encode}")
    for (held, results), (held_free, expected) in zip(bounded, free, strict=True):
        for layer, bytes_ in held.items():
            assert BUFFER / 4 < bytes_ <= 1.1 * BUFFER
            assert held_free[layer] > 4 * BUFFER  # the meter would see it
            for got, reference in zip(results[layer], expected[layer], strict=True):
                torch.testing.assert_close(got, reference, rtol=1e-4, atol=1e-4)


def differences(world, folder, encode):
    """Return how far results of a buffer of a few rows are from those without, by reduction."""
    shard = load_shard(folder, world)
    x = torch.sin(shard.node_id[:, None] * torch.arange(1.0, 1 + WIDTH))
    found = []
    for reduce in ("sum", "max"):
        results = []
        for policy in (f"remat:buffer=21400+{encode}", encode):
            block, _ = made(world, shard, policy)
            mine = x.clone().requires_grad_()
            out = aggregate(mine, block, reduce=reduce)
            (out * torch.cos(x)).sum().backward()
            results.append((out.detach(), mine.grad))
        found += [(a - b).abs().max().item() for a, b in zip(*results, strict=True)]
    return found


@pytest.mark.parametrize("name", ["symmetric", "directed"])
def test_values_and_gradients_may_be_of_other_widths_on_the_wire(name, folders):
    """The buffer holds 64 rows of 2 bits an element, not of 4; draws are the same in any piece."""
    for found in run_ranks(differences, 3, folders / name, "quantized:bits=2,grad_bits=4"):
        assert max(found) < 1e-4


def counted(world, folder, reduce):
    """Return bytes and messages of a forward and of a forward with its backward."""
    shard = load_shard(folder, world)
    counts = []
    for layer, policy in enumerate(("overlap", f"remat:buffer={BUFFER}")):
        block, meter = made(world, shard, policy, layer)
        x = torch.rand(shard.num_owned, WIDTH, requires_grad=True)
        out = aggregate(x, block, reduce=reduce)
        counts.append((meter.halo_bytes, meter.halo_messages))
        out.sum().backward()
        counts.append((meter.halo_bytes, meter.halo_messages))
    return shard.plan.send_ptr, counts


@pytest.mark.parametrize(("name", "reduce"), [("symmetric", "mean"), ("directed", "max")])
def test_only_what_a_backward_needs_is_fetched_again(name, reduce, folders):
    by_rank = run_ranks(counted, 3, folders / name, reduce)
    total = np.array([counts for _, counts in by_rank]).sum(0)
    once, both, once_in_pieces, both_in_pieces = total
    assert once_in_pieces[0] == once[0]
    again = once[0] if reduce == "max" else 0
    assert both_in_pieces[0] == both[0] + again
    chunk = BUFFER // (4 * 4 * WIDTH)  # two messages each way
    sent = [np.diff(ptr) for ptr, _ in by_rank]
    expected = sum(math.ceil(count / chunk) for counts in sent for count in counts)
    assert once_in_pieces[1] == expected
    assert expected > 5 * once[1]
    assert both_in_pieces[1] == expected * (3 if reduce == "max" else 2)


def refused(world, folder):
    shard = load_shard(folder, world)
    block, _ = made(world, shard, "remat:buffer=2K")
    x = torch.rand(shard.num_owned, 8)
    with pytest.raises(ConfigError, match="needs all halo rows at once, but under remat:buffer=2K"):
        halo_exchange(x, block.exchange)
    shape = ModelShape(8, 8, 3, heads=2)
    with pytest.raises(ConfigError, match="attention needs all halo rows at once"):
        build_model("gat", shape, world.transport)(x, [block, block])
    attention = parallelize(GATv2Conv(8, 2), shard, world, halo="remat:buffer=2K")
    with pytest.raises(ConfigError, match="needs all halo rows at once, but under remat:buffer=2K"):
        attention(x, shard.edge_index)
    # A layer of PyTorch Geometric that only sums is exact.
    layer = SAGEConv(8, 2)
    outs = [
        parallelize(layer, shard, world, halo=halo)(x, shard.edge_index)
        for halo in ("overlap", "remat:buffer=2K")
    ]
    torch.testing.assert_close(*outs)
    narrow, _ = made(world, shard, "remat:buffer=127")
    with pytest.raises(ConfigError, match=r"buffer of 127 must hold .* are 128 bytes here"):
        aggregate(x, narrow)
    # Nothing is under way after a refusal.
    aggregate(x, block)
    return True


def test_what_cannot_be_bounded_is_refused_on_every_rank(folders):
    assert all(run_ranks(refused, 3, folders / "symmetric"))


def dying(world, folder, direction):
    shard = load_shard(folder, world)
    block, _ = made(world, shard, "remat:buffer=2K")
    exchange, x = block.exchange, torch.rand(shard.num_owned, WIDTH)
    rounds = []

    def use(begin, end, rows):
        rounds.append((begin, end))
        if world.rank == 1 and len(rounds) == 3:
            os._exit(9)

    def make(begin, end):
        use(begin, end, None)
        return x.new_ones(end - begin, WIDTH)

    def run():
        if direction == "fetch":
            each_piece(exchange.forward.start(x), use)
        else:
            give_back(exchange, make, x)(x)

    with pytest.raises(RankError) as caught:
        run()
    assert len(rounds) > 0
    return caught.value.rank


@pytest.mark.parametrize("direction", ["fetch", "return"])
def test_a_rank_that_dies_between_rounds_is_named(direction, folders):
    assert run_ranks(dying, 3, folders / "symmetric", direction, may_die=[1]) == [1, None, 1]


def trained(world, folder, policy, prune):
    """Return the losses of some epochs with evaluations in between, and the memory of both."""
    shard = load_shard(folder, world).with_dtype(torch.float64)
    task = make_task(shard, 0, world)
    torch.manual_seed(3)
    model = build_model("sage", ModelShape(16, 24, 4, layers=3), world.transport).double()
    run = FullBatch(
        model,
        shard,
        world,
        training=TrainingSet(shard, task, prune),
        halo=HaloPolicy.parse(policy),
        seed=1,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, held = [], []
    for epoch in range(4):
        losses.append(run.step(optimizer, epoch).loss)
        held.append(run.meter.peak_held_bytes)
        run.meter.reset()
        losses.append(run.predict().square().sum().item())
        held.append(run.meter.peak_held_bytes)
    return losses, max(held)


@pytest.mark.parametrize("prune", [False, True])
def test_training_and_evaluation_are_those_of_one_process(prune, tmp_path):
    graph = load_dataset("sbm:nodes=600,blocks=4,features=16")
    partition = Partition(np.arange(600) % 4, 4, method="random")
    write_partition(graph, partition, tmp_path / "parts")
    [(expected, _)] = run_ranks(trained, 1, tmp_path / "parts", "overlap", False)
    buffer = 16 << 10
    by_rank = run_ranks(trained, 2, tmp_path / "parts", f"remat:buffer={buffer}", prune)
    assert all(0 < held <= 1.1 * buffer for _, held in by_rank)
    np.testing.assert_allclose(by_rank[0][0][::2], expected[::2], rtol=1e-10)
    evaluated = [sum(losses[i] for losses, _ in by_rank) for i in range(1, 8, 2)]
    np.testing.assert_allclose(evaluated, expected[1::2], rtol=1e-9)


def half_rows(world, folder):
    shard = load_shard(folder, world)
    exact, _ = made(world, shard, "overlap")
    for layer, dtype in enumerate((torch.float16, torch.bfloat16)):
        block, _ = made(world, shard, "remat:buffer=512+bf16", layer + 1)
        x = torch.round(shard.x * 4).to(dtype).requires_grad_()
        out, reference = aggregate(x, block), aggregate(x.detach().double(), exact)
        torch.testing.assert_close(out.double(), reference, rtol=0.02, atol=0.02)
        out.sum().backward()
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ["star", "empty part", "duplicate edges"])
def test_half_precision_rows(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    run_ranks(half_rows, 3, tmp_path / "parts")
