"""Stale halo rows: which step's rows are used in which, step by step, and nothing is lost."""

import math
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from awkward import AWKWARD, MOSTLY_SLOW, awkward_case

from gnn_dist.errors import ConfigError, RankError
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.exchange import ExchangeMaker, halo_exchange
from gnn_dist.halo.load import load_shard
from gnn_dist.halo.route import BIN_KEY
from gnn_dist.ops.draws import uniform_by_id
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

pytestmark = pytest.mark.mpi

RANKS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_of("random partition", tmp_path_factory.mktemp("stale"))


def folder_of(name, path):
    _, graph, partition = awkward_case(name, RANKS)
    write_partition(graph, partition, path / "parts")
    return path / "parts"


def rows_of(ids, step, width=2):
    """Values that differ in every node and step."""
    ids = torch.as_tensor(ids, dtype=torch.float64)
    return torch.sin(ids[:, None] * (1 + torch.arange(width)) + 7.0 * step)


class Bench:
    """An exchange of one layer, with what it needs."""

    def __init__(self, world, folder, policy):
        self.world, self.shard = world, load_shard(folder, world)
        self.clock, self.meter = Clock(5), Meter()
        self.maker = ExchangeMaker(
            self.shard.plan,
            world.transport,
            policy,
            clock=self.clock,
            meter=self.meter,
            machines="abb"[: world.world_size],
        )
        self.exchange = self.maker.at(0)

    def forward(self, step, rows=None):
        self.clock.begin(step)
        return self.again(step, rows)

    def again(self, step, rows=None):
        if rows is None:
            rows = rows_of(self.shard.node_id, step)
        return self.exchange.forward.start(rows).wait()

    def expected(self, steps, width=2):
        """Halo rows, each of the step that is said."""
        ids = self.shard.plan.halo_id
        steps = torch.as_tensor(steps).expand(len(ids))
        return torch.stack(
            [rows_of(i[None], s, width)[0] for i, s in zip(ids, steps, strict=True)]
            or [torch.zeros(0)]
        ).view(len(ids), width)


# A whole run by hand -------------------------------------------------------------------------


def simulate(values, num_steps, *, r, bins, warmup, bin_of):
    """Yield the cache of each step: {(node, reader): row}, of values(step) -> the same."""
    cache, flying = {}, []
    for step in range(num_steps):
        now = values(step)
        if step < warmup:
            cache.update(now)
        else:
            flying.append((step, {k: v for k, v in now.items() if bin_of[k[0]] == step % bins}))
            while flying and flying[0][0] + r <= step:
                cache.update(flying.pop(0)[1])
        yield dict(cache)


def by_hand(graph, part, num_steps, symmetric, **timing):
    """Return outputs and input gradients (steps, N, 2) of a sum over in-edges, in NumPy."""
    n = graph.num_nodes
    dense = np.zeros((n, n))
    dst = np.repeat(np.arange(n), np.diff(graph.indptr))
    np.add.at(dense, (dst, graph.indices), 1.0)
    reads = {(j, part[i]) for i, j in zip(dst, graph.indices, strict=True) if part[i] != part[j]}
    inside = dense * (part[:, None] == part)
    x = np.stack([rows_of(range(n), step).numpy() for step in range(num_steps)])
    g = np.stack([rows_of(range(n), step + 0.5).numpy() for step in range(num_steps)])
    bin_of = (uniform_by_id(BIN_KEY, torch.arange(n)).numpy() * timing["bins"]).astype(int)

    def gradients(step):
        if symmetric:
            return {(i, q): g[step, i] for i, q in reads}
        return {(j, q): (dense[:, j] * (part == q)) @ g[step] for j, q in reads}

    def run(values):
        return simulate(values, num_steps, bin_of=bin_of, **timing)

    outs = inside @ x
    for step, cache in enumerate(run(lambda step: {(j, q): x[step, j] for j, q in reads})):
        for (j, q), row in cache.items():
            outs[step] += np.outer(dense[:, j] * (part == q), row)
    grads = inside.T @ g
    for step, cache in enumerate(run(gradients)):
        for (j, q), row in cache.items():
            if symmetric:  # j's output gradient, read by q for its own nodes
                grads[step] += np.outer(dense[j] * (part == q), row)
            else:
                grads[step, j] += row
    return outs, grads


def aggregated(world, folder, policy, num_steps):
    bench = Bench(world, folder, policy)
    block = Block(bench.shard.structure, bench.exchange)
    outs, grads = [], []
    for step in range(num_steps):
        bench.clock.begin(step)
        x = rows_of(bench.shard.node_id, step).requires_grad_()
        out = aggregate(x, block)
        out.backward(rows_of(bench.shard.node_id, step + 0.5))
        outs.append(out.detach())
        grads.append(x.grad)
    bench.maker.drain()
    return bench.shard.node_id.numpy(), torch.stack(outs).numpy(), torch.stack(grads).numpy()


@pytest.mark.parametrize("name", ["random partition", "directed"])
@pytest.mark.parametrize(
    ("policy", "timing"),
    [
        ("delayed:r=2,bins=3,warmup=2", {"r": 2, "bins": 3, "warmup": 2}),
        ("delayed:r=3,bins=2,warmup=1", {"r": 3, "bins": 2, "warmup": 1}),
        ("pipelined:warmup=1", {"r": 1, "bins": 1, "warmup": 1}),
    ],
)
def test_every_step_is_that_of_a_simulation(name, policy, timing, tmp_path):
    _, graph, partition = awkward_case(name, RANKS)
    results = run_ranks(aggregated, RANKS, folder_of(name, tmp_path), policy, 12)
    symmetric = name == "random partition"
    expected = by_hand(graph, partition.assignment, 12, symmetric, **timing)
    for ids, *found in results:
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs[:, ids], rtol=0, atol=1e-12)


# Properties ----------------------------------------------------------------------------------


def each_step(world, folder, policy, num_steps):
    bench = Bench(world, folder, policy)
    rows, sent = [], []
    for step in range(num_steps):
        bench.meter.reset()
        rows.append(bench.forward(step))
        sent.append(bench.meter.halo_bytes)
    bench.maker.drain()
    assert not world.transport.in_flight
    return [r.numpy() for r in rows], sent


@pytest.mark.parametrize(
    "policy", ["delayed:r=0,bins=1", "ssp:s=0,warmup=1", "delayed:r=4,bins=3,warmup=8"]
)
def test_without_delay_and_while_warming_up_it_is_blocking_bit_by_bit(policy, folder):
    exact = run_ranks(each_step, RANKS, folder, "blocking", 8)
    for ours, theirs in zip(run_ranks(each_step, RANKS, folder, policy, 8), exact, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[1] == theirs[1]


def test_one_step_in_bins_costs_one_exact_step(folder):
    exact = run_ranks(each_step, RANKS, folder, "overlap", 1)
    results = run_ranks(each_step, RANKS, folder, "delayed:r=2,bins=4,warmup=3", 3 + 8)
    for (_, sent), (_, [whole]) in zip(results, exact, strict=True):
        assert sent[:3] == [whole] * 3
        assert sum(sent[3:7]) == sum(sent[7:]) == whole
        assert max(sent[3:]) < 0.6 * whole


def smoothed(world, folder):
    bench = Bench(world, folder, "pipelined:smooth=0.75,warmup=2")
    cache = None
    for step in range(8):
        rows = bench.forward(step)
        if step < 2:
            cache = bench.expected(step)
        elif step > 2:  # in step 2 nothing is due: what step 1 sent has been used
            cache = 0.75 * cache + 0.25 * bench.expected(step - 1)
        torch.testing.assert_close(rows, cache, rtol=0, atol=1e-12)
    bench.maker.drain()


def test_smoothing(folder):
    run_ranks(smoothed, RANKS, folder)


def bounded(world, folder):
    """Every received number says in which step it was sent."""
    bench = Bench(world, folder, "ssp:s=2,warmup=1")
    draw, late = random.Random(world.rank), 0
    for step in range(25):
        time.sleep(draw.random() * 0.01)
        bench.clock.begin(step)
        rows = torch.full((bench.shard.num_owned, 1), float(step))
        pending = bench.exchange.forward.start(rows)
        versions = pending.wait()[:, 0]
        assert (versions <= step).all()
        assert (versions >= max(0, step - 2)).all()
        for a, b in zip(bench.shard.plan.recv_ptr, bench.shard.plan.recv_ptr[1:], strict=False):
            assert len(versions[a:b].unique()) == min(1, b - a)  # of one rank, of one step
        late += int((versions < step).sum())
        assert torch.equal(pending.wait()[:, 0], versions)
    bench.maker.drain()
    return late


def test_ssp_uses_no_rows_older_than_its_bound_and_some_that_are(folder):
    assert sum(run_ranks(bounded, RANKS, folder, timeout_s=100.0)) > 0


def sampled(world, folder, p):
    """Rows that are drawn are renewed, unscaled; the others keep what they were."""
    bench = Bench(world, folder, f"pipelined:warmup=1+sampled:p={p}")
    age = torch.zeros(bench.shard.num_halo)
    drawn = None
    for step in range(10):
        rows = bench.forward(step)
        if step > 1:
            age[drawn] = step - 1.0
        torch.testing.assert_close(rows, bench.expected(age), rtol=0, atol=1e-12)
        key = bench.clock.key((1 << 20) - 1)
        drawn = uniform_by_id(key, bench.maker._there.recv_key) < p
    assert bench.exchange.sums_only == ""
    bench.maker.drain()
    return len(age.unique())


def test_sampling_chooses_what_is_renewed(folder):
    assert max(run_ranks(sampled, RANKS, folder, 0.4)) > 2


def on_awkward(world, folder, policy):
    """Everything runs on every graph, in any dtype, with trailing shapes, max and mean too."""
    bench = Bench(world, folder, policy)
    block = Block(bench.shard.structure, bench.exchange)
    for step, dtype in enumerate([torch.float32] * 3 + [torch.bfloat16] * 2):
        bench.clock.begin(step)
        for reduce in ("mean", "max"):
            x = rows_of(bench.shard.node_id, step, 6).to(dtype).view(-1, 2, 3).requires_grad_()
            aggregate(x, block, reduce=reduce).sum().backward()
            assert torch.isfinite(x.grad).all()
    bench.maker.drain()


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_awkward_graphs(name, tmp_path):
    policies = ["delayed:r=1,bins=2,warmup=1+bf16", "ssp:s=1,warmup=1"]
    policy = policies[AWKWARD.index(name) % 2]
    run_ranks(on_awkward, RANKS, folder_of(name, tmp_path), policy)


def alone(world, folder):
    for policy in ("delayed", "ssp", "local"):
        bench = Bench(world, folder, policy)
        for step in range(8):
            assert bench.forward(step).shape == (0, 2)
        state = bench.maker.state_dict()
        bench.maker.load_state_dict(state)
        assert bench.forward(8).shape == (0, 2)
        assert bench.meter.halo_bytes == 0


def test_one_rank(folder):
    run_ranks(alone, 1, folder)


# An exchange that is used in other ways than once a step ---------------------------------------


def used_twice(world, folder):
    """Each of two uses has a cache of its own; a third one in one step alone is exact."""
    bench = Bench(world, folder, "delayed:r=1,bins=1,warmup=1")
    for step in range(6):
        first, second = bench.forward(step), bench.again(100 + step)
        before = max(step - 1, 0)
        torch.testing.assert_close(first, bench.expected(before))
        torch.testing.assert_close(second, bench.expected(100 + before))
        if step == 3:
            torch.testing.assert_close(bench.again(500), bench.expected(500))
    bench.maker.drain()


def test_an_exchange_used_twice_in_a_step_has_two_caches(folder):
    run_ranks(used_twice, RANKS, folder)


def how_stale(world, folder):
    """Of two uses the staler one counts, and zeros are no measure of anything."""
    bench = Bench(world, folder, "pipelined:warmup=1")
    rows = rows_of(bench.shard.node_id, 0)
    found = []
    for step in range(5):
        bench.meter.reset()
        bench.forward(step, (step + 1) * rows)
        bench.again(step, rows if step else 0 * rows)
        found.append(bench.meter.largest_change("forward", "up"))
        assert math.isnan(bench.meter.largest_change("reverse"))
    bench.maker.drain()
    return found


def test_staleness_is_the_change_over_the_norm_before(folder):
    for found in run_ranks(how_stale, RANKS, folder):
        assert found == pytest.approx([math.nan, math.nan, 1.0, 1 / 2, 1 / 3], nan_ok=True)


def second_backward(world, folder):
    """A backward that comes again sends again, and leaves alone what the first keeps."""
    grads = {}
    for again in (False, True):
        bench = Bench(world, folder, "delayed:r=2,bins=1,warmup=1")
        block = Block(bench.shard.structure, bench.exchange)
        for step in range(6):
            bench.clock.begin(step)
            x = rows_of(bench.shard.node_id, step).requires_grad_()
            out = aggregate(x, block, reduce="max")
            for _ in range(2 if again and step == 3 else 1):
                x.grad = None
                out.backward(rows_of(bench.shard.node_id, step + 0.5), retain_graph=True)
            if not again or step != 3:
                grads[again, step] = x.grad
        bench.maker.drain()
    for step in (0, 1, 2, 4, 5):
        torch.testing.assert_close(grads[True, step], grads[False, step], rtol=0, atol=0)


def test_a_second_backward_does_not_disturb_later_steps(folder):
    run_ranks(second_backward, RANKS, folder)


def kept_rows(world, folder):
    """What was returned may be kept for a backward, or, from `halo_exchange`, be changed."""
    bench, other = (Bench(world, folder, "delayed:r=1,bins=2,warmup=1") for _ in range(2))
    kept = []
    for step in range(6):
        rows = bench.forward(step)
        kept.append((rows, rows.clone()))
        assert all(torch.equal(now, then) for now, then in kept)
        other.clock.begin(step)
        x = rows_of(other.shard.node_id, step).requires_grad_()
        changed = halo_exchange(x, other.exchange).detach()
        assert torch.equal(changed, rows)
        changed.fill_(-5.0)
    bench.maker.drain()
    other.maker.drain()


def test_rows_that_were_returned_do_not_change(folder):
    run_ranks(kept_rows, RANKS, folder)


class Recorder:
    """A transport that remembers the memory that it was given to send."""

    def __init__(self, transport):
        self._transport, self.sent = transport, []

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def exchange(self, send, *args):
        self.sent.append(send.untyped_storage().data_ptr())
        return self._transport.exchange(send, *args)


def sent_memory(world, folder, policy):
    shard, recorder = load_shard(folder, world), Recorder(world.transport)
    maker = ExchangeMaker(shard.plan, recorder, policy, clock=Clock())
    exchange = maker.at(0)
    rows = rows_of(shard.plan.halo_id, 0)
    exchange.reverse.start(rows).wait()
    assert rows.untyped_storage().data_ptr() not in recorder.sent
    assert recorder.sent


@pytest.mark.parametrize("policy", ["pipelined", "ssp", "delayed:bins=2"])
def test_what_outlives_its_step_is_sent_from_memory_of_its_own(policy, folder):
    run_ranks(sent_memory, 2, folder, policy)


def changed_width(world, folder):
    bench = Bench(world, folder, "delayed:r=3,bins=2,warmup=2")
    for step, width in enumerate([2, 2, 2, 2, 5, 5, 5, 2]):
        rows = bench.forward(step, rows_of(bench.shard.node_id, step, width))
        if step in (0, 1, 4, 5, 7):  # the first of a width are exact
            torch.testing.assert_close(rows, bench.expected(step, width))
        else:
            torch.testing.assert_close(rows, bench.expected(5 if width == 5 else 1, width))
    half = bench.forward(8, rows_of(bench.shard.node_id, 8).float())
    torch.testing.assert_close(half, bench.expected(8).float())
    bench.maker.drain()


def test_another_width_or_dtype_begins_anew(folder):
    run_ranks(changed_width, RANKS, folder)


def exact_between(world, folder):
    """Exact exchanges on the same channels do not take what is on its way."""
    bench = Bench(world, folder, "delayed:r=3,bins=1,warmup=1")
    exact = ExchangeMaker(bench.shard.plan, world.transport, "overlap").at(0)
    for step in range(9):
        torch.testing.assert_close(bench.forward(step), bench.expected(max(step - 3, 0)))
        rows = exact.forward.start(rows_of(bench.shard.node_id, -step)).wait()
        torch.testing.assert_close(rows, bench.expected(-step))
    bench.maker.drain()


def test_evaluation_in_between_needs_no_draining(folder):
    run_ranks(exact_between, RANKS, folder)


LATENCY_S = 0.04


class LateHandle:
    """An operation that is complete some time after its start."""

    def __init__(self, handle):
        self._handle, self._due = handle, time.monotonic() + LATENCY_S

    def wait(self, timeout_s=None):
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._handle.wait(timeout_s)

    def done(self):
        return time.monotonic() >= self._due and self._handle.done()


class SlowNetwork(Recorder):
    """A transport whose messages take their time."""

    def exchange(self, send, *args):
        return LateHandle(self._transport.exchange(send, *args))


def waiting(world, folder):
    """Return the median seconds of waiting in a step, by policy; all run side by side."""
    shard, waits = load_shard(folder, world), {}
    runs = {}
    for policy in ("overlap", "pipelined:warmup=1", "delayed:r=2,bins=2,warmup=1"):
        clock, meter = Clock(), Meter()
        maker = ExchangeMaker(
            shard.plan, SlowNetwork(world.transport), policy, clock=clock, meter=meter
        )
        runs[policy], waits[policy] = (maker, maker.at(0), clock, meter), []
    for step in range(9):
        for policy, (_, exchange, clock, meter) in runs.items():
            clock.begin(step)
            meter.reset()
            exchange.forward.start(rows_of(shard.node_id, step)).wait()
            waits[policy].append(meter.seconds("halo_wait"))
        time.sleep(2 * LATENCY_S)  # the rest of the step
    for maker, *_ in runs.values():
        maker.drain()
    return [float(np.median(seconds[1:])) for seconds in waits.values()]


def test_nobody_waits_for_rows_that_are_not_due(folder):
    for exact, pipelined, delayed in run_ranks(waiting, 2, folder):
        assert exact > 0.9 * LATENCY_S
        assert max(pipelined, delayed) < 0.5 * exact


# State ---------------------------------------------------------------------------------------


def stopped_and_resumed(world, folder, policy):
    whole, first, second = (Bench(world, folder, policy) for _ in range(3))
    for step in range(14):
        expected = whole.forward(step)
        if step < 7:
            found = first.forward(step)
        else:
            if step == 7:
                assert first.maker.fingerprint == second.maker.fingerprint
                second.maker.load_state_dict(first.maker.state_dict())
            found = second.forward(step)
        assert torch.equal(found, expected), step
    for bench in (whole, second):
        bench.maker.drain()
    others = (Bench(world, folder, "delayed:r=9"), Bench(world, folder, "bf16"))
    return first.maker.fingerprint, [other.maker.fingerprint for other in others]


@pytest.mark.parametrize(
    "policy",
    [
        "delayed:r=3,bins=2,warmup=2",
        "pipelined:smooth=0.5",
        "delayed:r=2,warmup=1+sampled:p=0.5",
        "delayed:r=2,bins=2,warmup=1+relay:least=0",
        "delayed:r=2,bins=2,warmup=2+adaptive",
        "pipelined:warmup=2+quantized:bits=4,feedback=true",
    ],
)
def test_state_goes_on_as_if_nothing_had_happened(policy, folder):
    prints = run_ranks(stopped_and_resumed, RANKS, folder, policy)
    each = [p for mine, others in prints for p in (mine, *others)]
    assert len(set(each)) == len(each)  # by rank and by policy


def stateless(world, folder):
    for policy in ("overlap", "blocking", "local"):
        bench = Bench(world, folder, policy)
        bench.forward(0)
        assert bench.maker.state_dict() == {}


def test_other_policies_have_no_state(folder):
    run_ranks(stateless, 2, folder)


# Nothing travels -----------------------------------------------------------------------------


def local(world, folder):
    bench = Bench(world, folder, "local")
    block = Block(bench.shard.structure, bench.exchange)
    x = rows_of(bench.shard.node_id, 0).requires_grad_()
    out = aggregate(x, block)
    out.backward(torch.ones_like(out))
    csr, n = bench.shard.structure.csr, bench.shard.num_owned
    dst = torch.repeat_interleave(torch.arange(n), csr.indptr.diff())
    own = csr.indices < n
    dense = torch.zeros(n, n, dtype=torch.float64)
    dense.index_put_((dst[own], csr.indices[own].long()), torch.tensor(1.0).double(), True)
    torch.testing.assert_close(out.detach(), dense @ x.detach())
    torch.testing.assert_close(x.grad, dense.T @ torch.ones_like(out))
    assert bench.meter.halo_bytes == 0
    with pytest.raises(ConfigError, match="under local they count as zeros"):
        aggregate(x, block, reduce="max")


@pytest.mark.parametrize("name", ["random partition", "directed"])
def test_local_counts_own_nodes_alone(name, tmp_path):
    run_ranks(local, RANKS, folder_of(name, tmp_path))


def clockless(world, folder):
    shard = load_shard(folder, world)
    with pytest.raises(ConfigError, match="needs a clock"):
        ExchangeMaker(shard.plan, world.transport, "delayed")


def test_a_clock_is_needed(folder):
    run_ranks(clockless, 1, folder)


# Failures ------------------------------------------------------------------------------------


def dies(world, folder, policy):
    """Rank 1 dies with messages on their way that the others have yet to wait for."""
    bench = Bench(world, folder, policy)
    started = time.monotonic()
    try:
        for step in range(1000):
            if step == 6 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            bench.forward(step)
    except RankError as error:
        return error.rank, time.monotonic() - started
    return None


@pytest.mark.parametrize("policy", ["delayed:r=3,bins=2,warmup=2", "ssp:s=2"])
def test_a_rank_that_dies_is_named_by_those_who_wait_for_its_older_rows(policy, folder):
    results = run_ranks(dies, RANKS, folder, policy, may_die=[1], timeout_s=60.0)
    assert [r and r[0] for r in results] == [1, None, 1]
    assert max(r[1] for r in results if r) < 20.0
