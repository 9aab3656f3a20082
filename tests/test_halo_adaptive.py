"""Widths by ranges under a budget: the choice itself, and that both ends of a pair agree."""

import itertools

import pytest
import torch
from awkward import awkward_case

from gnn_dist.halo.adaptive import WIDTHS, AdaptiveRows, assign_bits, uniform_bits
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.courier import Place
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.route import Route, back, there
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.quantize import dequantize_rows, packed_width, quantize_rows
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks


def variance(bits, squares):
    return sum(s / 4 / (2**b - 1) ** 2 for b, s in zip(bits, squares, strict=True))


def size_of(bits, rows, num_cols):
    return sum(n * packed_width(num_cols, b) for b, n in zip(bits, rows, strict=True))


@pytest.mark.parametrize("budget", [0.08, 0.12, 0.15, 0.2, 0.27, 1.0])
def test_the_choice_is_close_to_the_best_and_within_the_budget(budget):
    generator = torch.Generator().manual_seed(int(budget * 100))
    for _ in range(20):
        squares = torch.rand(5, generator=generator).pow(4).mul(1000).tolist()
        rows = torch.randint(0, 30, (5,), generator=generator).tolist()
        squares = [s if n else 0.0 for s, n in zip(squares, rows, strict=True)]
        limit = budget * 4 * 64 * sum(rows)
        bits = assign_bits(squares, rows, num_cols=64, budget=budget)
        assert size_of(bits, rows, 64) <= limit
        every = itertools.product(WIDTHS, repeat=5)
        fit = [b for b in every if size_of(b, rows, 64) <= limit]
        best = min(variance(b, squares) for b in fit)
        # One step to a wider row may not fit where the best choice has room for it.
        one_step = max(s / 4 * (1 / 9 - 1 / 225) for s in squares)
        assert best <= variance(bits, squares) * (1 + 1e-12) <= best * (1 + 1e-9) + one_step


def test_more_bits_where_ranges_are_larger():
    # 36 bytes a row: what one gives up, another takes.
    assert assign_bits([1.0, 1e6, 1.0], [10] * 3, num_cols=64, budget=36 / 256) == (2, 8, 2)
    assert assign_bits([5.0, 5.0, 5.0], [10] * 3, num_cols=64, budget=36 / 256) == (4, 4, 4)
    # A tie goes to the lower rank; no rows take no bytes; narrow rows go over any budget.
    assert assign_bits([5.0, 5.0], [10] * 2, num_cols=64, budget=28 / 256) == (4, 2)
    assert assign_bits([9.0, 5.0], [0, 10], num_cols=64, budget=36 / 256) == (2, 4)
    assert assign_bits([5.0, 5.0], [1, 1], num_cols=3, budget=0.15) == (2, 2)


def test_one_width_for_all_until_ranges_are_known():
    assert [uniform_bits(64, budget) for budget in (0.05, 0.08, 0.15, 0.26, 0.27)] == [
        2,
        2,
        4,
        4,
        8,
    ]


def rows_of(keys, num_cols, step):
    place = torch.arange(num_cols)
    size = 10.0 ** (keys % 5)[:, None]  # some rows' ranges are far above others'
    return (size * torch.sin((keys % 1009)[:, None] * 1.3 + place + step)).float()


def both_ends(world, folder):
    """What arrives is what the sender packed, in the widths that either works out."""
    plan = load_shard(folder, world).plan
    clock, meter = Clock(2), Meter()
    maker = ExchangeMaker(
        plan, world.transport, "adaptive:budget=0.22,every=2", clock=clock, meter=meter
    )
    exchange = maker.at(1)
    seen = set()
    for step in range(7):
        clock.begin(step)
        for name, route in (
            ("forward", there(plan, world.rank)),
            ("reverse", back(plan, world.rank)),
        ):
            way = getattr(exchange, name)
            key = clock.key(Place(1, name).channel)
            keys = (route.send_id, route.recv_id)
            if name == "reverse":
                keys = (route.send_key, route.recv_key)
            sources = plan.src_id[: plan.num_owned] if name == "forward" else keys[0]
            meter.reset()
            received = way.start(rows_of(sources, 64, step)).wait()
            used = meter.halo_bytes
            again = way.start(rows_of(sources, 64, step)).wait()
            torch.testing.assert_close(again, received, rtol=0, atol=0)  # twice in one step
            assert used <= 0.22 * 256 * route.num_sent
            exact = rows_of(keys[1], 64, step)
            found = {
                bits: dequantize_rows(
                    quantize_rows(exact, keys[1], key=key, bits=bits), num_cols=64, bits=bits
                )
                for bits in WIDTHS
            }
            bits = way.state_dict()["received"] if step % 2 else None
            for q, (a, b) in enumerate(itertools.pairwise(route.recv_ptr)):
                if a == b:
                    continue
                equal = {w for w in WIDTHS if torch.equal(found[w][a:b], received[a:b])}
                assert len(equal) == 1
                assert bits is None or equal == {bits[q]}
                assert step > 0 or equal == {4}
                seen |= equal
    return sorted(seen)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["random partition", "directed", "empty part"])
def test_both_ends_agree_in_every_step(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    seen = run_ranks(both_ends, 3, tmp_path / "parts")
    # With an empty part two ranks are left, whose budgets have one taker each.
    assert (set().union(*seen) == {4}) == (name == "empty part")


def late(world, folder):
    """A parcel is read in the widths that it was sent in, whatever has been assigned since."""
    plan = load_shard(folder, world).plan
    clock = Clock()
    policy = "adaptive:budget=0.22,every=1"
    exchange = ExchangeMaker(plan, world.transport, policy, clock=clock).at(0).forward
    pending = []
    for step in range(3):
        clock.begin(step)
        pending.append(exchange.start(rows_of(plan.src_id[: plan.num_owned], 64, step)))
    for step in (2, 0, 1):
        exact = rows_of(plan.halo_id, 64, step)
        step_size = 2.02 * exact.abs().amax(1, keepdim=True) / 3
        assert ((pending[step].wait() - exact).abs() <= step_size).all()
    return exchange.state_dict()["received"]


@pytest.mark.mpi
def test_parcels_outlive_an_assignment(tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    received = run_ranks(late, 3, tmp_path / "parts")
    assert 8 in received[0] + received[1] + received[2]  # in the first step all were 4


def rank_by_rank(world, folder):
    """Return the widths of a policy that sends to each rank apart."""
    plan = load_shard(folder, world).plan
    clock = Clock()
    policy = "ssp:s=0,warmup=1+adaptive:budget=1,every=2"
    exchange = ExchangeMaker(plan, world.transport, policy, clock=clock).at(0).forward
    for step in range(4):
        clock.begin(step)
        exchange.start(rows_of(plan.src_id[: plan.num_owned], 64, step)).wait()
    exchange.drain()
    return exchange.state_dict()["codec"]["sent"]


@pytest.mark.mpi
def test_rows_that_go_to_each_rank_apart_are_measured_for_all(tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    assert run_ranks(rank_by_rank, 3, tmp_path / "parts") == [(2, 8, 8), (8, 2, 8), (8, 8, 2)]


def test_rows_that_are_not_finite_gain_nothing():
    class Alone:
        rank, world_size, table = 0, 1, None

        def exchange(self, send, send_ptr, recv, recv_ptr, channel):
            self.table = send
            return self

        def wait(self):
            pass

    ids, alone = torch.arange(4), Alone()
    route = Route(0, True, None, ids, (0, 4), ids, (0, 4), None, 4)
    codec = AdaptiveRows(0.15, 10, transport=alone, channel=0, clock=Clock())
    rows = torch.ones(4, 64) * torch.arange(64)
    rows[1, 3], rows[2, 5] = torch.nan, torch.inf
    wire = codec.encode(rows, route, DrawKey(1, 2, 3))
    squares, count = alone.table.flatten().tolist()
    assert squares == pytest.approx(2 * 63**2, rel=0.02)
    assert count == 4
    assert codec.decode(wire, rows).isnan().all(1).tolist() == [False, True, True, False]


def test_a_state_of_other_ranks_is_refused():
    class Three:
        world_size = 3

    codec = AdaptiveRows(0.15, 10, transport=Three(), channel=0, clock=Clock())
    with pytest.raises(ValueError, match="widths are of 2 ranks, these are 3"):
        codec.load_state_dict({"sent": (2, 4), "received": (2, 4), "period": 0})
    with pytest.raises(ValueError, match="no state of the names residual"):
        codec.load_state_dict({"residual": torch.zeros(3)})
    codec.load_state_dict({"sent": (2, 4, 8), "received": (8, 8, 2), "period": 3})
    assert codec.state_dict()["received"] == (8, 8, 2)
    codec.load_state_dict({})
    assert (
        codec.state_dict()
        == AdaptiveRows(0.15, 10, transport=Three(), channel=0, clock=Clock()).state_dict()
    )
