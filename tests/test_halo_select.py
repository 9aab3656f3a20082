"""Sampled halo rows: both ends agree, sums are right on average, the backward is the adjoint."""

import numpy as np
import pytest
import torch
from awkward import MOSTLY_SLOW, awkward_case
from torch_geometric.nn import GATv2Conv, SAGEConv

from gnn_dist.errors import ConfigError
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.exchange import ExchangeMaker, halo_exchange
from gnn_dist.halo.load import load_shard
from gnn_dist.parallel.parallelize import parallelize
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

STEPS = 100


def folder_of(name, path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, path)
    return path


def one_step(world, folder, p):
    """What arrives in a step is what was chosen, scaled, at its place; the adjoint goes back."""
    shard = load_shard(folder, world)
    plan, clock, meter = shard.plan, Clock(7), Meter()
    exchange = ExchangeMaker(plan, world.transport, f"sampled:p={p}", clock=clock, meter=meter).at(
        0
    )
    x = shard.node_id.double()[:, None] + 1.0
    chosen = []
    for step in range(20):
        clock.begin(step)
        meter.reset()
        rows = exchange.forward.start(x).wait()
        here = rows[:, 0] != 0
        expected = (plan.halo_id.double() + 1.0)[:, None] / p
        torch.testing.assert_close(rows, torch.where(here[:, None], expected, 0.0))
        sent = meter.halo_bytes // 8
        # <E x, y> = <x, E' y>, over all ranks.
        y = torch.sin(plan.halo_id.double() + world.rank)[:, None]
        returned = plan.add_boundary(torch.zeros_like(x), exchange.reverse.start(y).wait())
        sides = torch.stack([(rows * y).sum(), (x * returned).sum(), torch.tensor(float(sent))])
        both = torch.cat([sides, here.sum()[None].double()])
        world.transport.all_reduce(both).wait()
        torch.testing.assert_close(both[0], both[1])
        assert both[2] == both[3]  # rows sent are rows received
        chosen.append(here)
    assert exchange.mirrored is None
    return torch.stack(chosen).double().mean(0).tolist()


@pytest.mark.parametrize("name", ["random partition", "directed", "star", "empty part"])
def test_both_ends_agree_and_the_backward_is_the_adjoint(name, tmp_path):
    run_ranks(one_step, 3, folder_of(name, tmp_path / "parts"), 0.5)


def test_certain_rows_all_travel(tmp_path):
    shares = run_ranks(one_step, 3, folder_of("random partition", tmp_path / "parts"), 1.0)
    assert all(share == 1.0 for by_rank in shares for share in by_rank)


def mean_of_steps(world, folder, p):
    shard = load_shard(folder, world)
    clock = Clock(3)
    block, exact = (
        Block(
            shard.structure, ExchangeMaker(shard.plan, world.transport, policy, clock=clock).at(i)
        )
        for i, policy in enumerate((f"sampled:p={p}", "overlap"))
    )
    total, squares, exact_grad = {}, {}, {}
    for reduce in ("sum", "mean"):
        for step in range(STEPS):
            clock.begin(step)
            x = shard.x.clone().requires_grad_()
            out = aggregate(x, block, reduce=reduce)
            out.backward(torch.cos(shard.node_id.double())[:, None].expand_as(out))
            values = torch.stack([out.detach(), x.grad])
            total[reduce] = total.get(reduce, 0) + values
            squares[reduce] = squares.get(reduce, 0) + values.square()
        x = shard.x.clone().requires_grad_()
        out = aggregate(x, exact, reduce=reduce)
        out.backward(torch.cos(shard.node_id.double())[:, None].expand_as(out))
        exact_grad[reduce] = torch.stack([out.detach(), x.grad])
        mean = total[reduce] / STEPS
        deviation = (squares[reduce] / STEPS - mean.square()).clamp(min=0).sqrt()
        error = (mean - exact_grad[reduce]).abs()
        # A mean of so many draws is within five of its standard deviations.
        assert (error <= 5 * deviation / STEPS**0.5 + 1e-9).all(), reduce
        assert world.world_size == 1 or deviation.max() > 0 or shard.num_halo == 0


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_sums_and_gradients_are_right_on_average(p, tmp_path):
    run_ranks(
        mean_of_steps, 2, folder_of("random partition", tmp_path / "parts"), p, timeout_s=100.0
    )


def share_of_rows(world, folder):
    shard = load_shard(folder, world)
    meters = {}
    for layer, policy in enumerate(("overlap", "sampled:p=0.1")):
        clock, meters[policy] = Clock(), Meter()
        maker = ExchangeMaker(
            shard.plan, world.transport, policy, clock=clock, meter=meters[policy]
        )
        exchange = maker.at(layer)
        for step in range(STEPS):
            clock.begin(step)
            exchange.forward.start(shard.x).wait()
    return [meter.halo_bytes for meter in meters.values()]


def test_a_tenth_of_the_rows_is_a_tenth_of_the_bytes(tmp_path):
    every, tenth = np.sum(
        run_ranks(share_of_rows, 3, folder_of("random partition", tmp_path / "parts")), axis=0
    )
    assert 0.08 * every < tenth < 0.12 * every


def refused(world, folder):
    shard = load_shard(folder, world)
    exchange = ExchangeMaker(shard.plan, world.transport, "sampled:p=0.5").at(0)
    x = shard.x.clone()
    with pytest.raises(
        ConfigError, match=r"sampled:p=0\.5 the rows that are left out count as zero"
    ):
        aggregate(x, Block(shard.structure, exchange), reduce="max")
    with pytest.raises(ConfigError, match=r"reads the rows of its sources does not sum"):
        halo_exchange(x, exchange)
    # A layer that only sums may be parallelized under it, attention may not.
    x = x.float()
    width = x.size(1)
    summed = parallelize(SAGEConv(width, 2), shard, world, halo="sampled")
    assert summed(x, shard.edge_index).shape == (shard.num_owned, 2)
    attention = parallelize(GATv2Conv(width, 2), shard, world, halo="sampled")
    with pytest.raises(ConfigError, match=r"reads the rows of its sources does not sum"):
        attention(x, shard.edge_index)


def test_what_is_no_sum_is_refused(tmp_path):
    run_ranks(refused, 2, folder_of("random partition", tmp_path / "parts"))


def on_awkward(world, folder):
    shard = load_shard(folder, world)
    clock = Clock(1)
    maker = ExchangeMaker(shard.plan, world.transport, "sampled:p=0.3+bf16", clock=clock)
    block = Block(shard.structure, maker.at(0))
    for step in range(3):
        clock.begin(step)
        x = shard.x.float().requires_grad_()
        aggregate(x, block, reduce="mean").sum().backward()
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_awkward_graphs(name, tmp_path):
    run_ranks(on_awkward, 3, folder_of(name, tmp_path / "parts"))
