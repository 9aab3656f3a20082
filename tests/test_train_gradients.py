"""Sums of gradients over ranks: buckets, their plan, and what is left out on the wire."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gnn_dist.errors import ConfigError
from gnn_dist.testing import run_ranks
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.gradients import GradientSync, plan_buckets

mpi = pytest.mark.mpi
STEPS = 40


def end_of(counts, ready, sizes, latency, byte):
    """Return when the last of some buckets has arrived."""
    done, i = 0.0, 0
    for count in counts:
        done = max(done, ready[i + count - 1]) + latency + byte * sum(sizes[i : i + count])
        i += count
    return done


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1, width=16), st.integers(0, 100)), min_size=1, max_size=8),
    st.floats(0, 1, width=16),
    st.floats(0, 0.0625, width=16),
)
def test_plan_is_the_best_of_all(gradients, latency, byte):
    ready = list(itertools.accumulate((r for r, _ in gradients), max))
    sizes = [size for _, size in gradients]
    plan = plan_buckets(ready, sizes, latency, byte)
    assert sum(plan) == len(sizes)
    ways = itertools.product([False, True], repeat=len(sizes) - 1)
    best = min(
        end_of([len(list(g)) for g in split(cuts)], ready, sizes, latency, byte) for cuts in ways
    )
    assert end_of(plan, ready, sizes, latency, byte) == pytest.approx(best)


def split(cuts):
    """Return runs of positions, cut after position i where cuts[i]."""
    run = [0]
    for i, cut in enumerate(cuts, 1):
        if cut:
            yield run
            run = []
        run.append(i)
    yield run


@pytest.mark.parametrize(
    ("latency", "byte", "plan"),
    [
        (0.0, 0.1, [1, 1, 1]),  # messages are free: each at once
        (9.0, 0.0, [3]),  # messages are dear: one
        (1.0, 0.01, [2, 1]),  # the first two are there when the third is not
    ],
)
def test_plans_by_hand(latency, byte, plan):
    assert plan_buckets([1.0, 1.5, 4.0], [10, 10, 10], latency, byte) == plan


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 2))
    return model.double()


def sums(world, options):
    """Return the numbers and gradients of five steps, on rank 2 without the last layer."""
    model = make_model()
    sync = GradientSync(model, world.transport, **options)
    out = []
    for step in range(5):
        x = torch.full((2, 4), 0.1 * (world.rank + 1) + step, dtype=torch.float64)
        value = (model if world.rank < 2 else model[:3])(x).square().sum()
        sync.begin(value.detach())
        value.backward()
        total = sync.finish()
        out.append((total, [p.grad.clone() for p in model.parameters()]))
    return out, sync.bucket_sizes


def expected(world_size):
    out = []
    for step in range(5):
        total, grads = 0.0, None
        for rank in range(world_size):
            model = make_model()
            x = torch.full((2, 4), 0.1 * (rank + 1) + step, dtype=torch.float64)
            value = (model if rank < 2 else model[:3])(x).square().sum()
            value.backward()
            total += value.item()
            mine = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
            grads = mine if grads is None else [a + b for a, b in zip(grads, mine, strict=True)]
        out.append((total, grads))
    return out


@mpi
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(
    ("buckets", "sizes"), [("one", [[75]]), ("layers", [[8, 27, 40]]), ("planned", None)]
)
def test_sums_are_those_of_one_process(world_size, buckets, sizes):
    by_rank = run_ranks(sums, world_size, {"buckets": buckets})
    for steps, bucket_sizes in by_rank:
        assert sizes is None or bucket_sizes in sizes
        assert bucket_sizes == by_rank[0][1]
        assert sum(bucket_sizes) == 75
        for (total, grads), (want, want_grads) in zip(steps, expected(world_size), strict=True):
            assert total == pytest.approx(want, rel=1e-12)
            for grad, want_grad in zip(grads, want_grads, strict=True):
                torch.testing.assert_close(grad, want_grad, rtol=1e-12, atol=1e-12)


@mpi
def test_half_sums_are_near_and_the_number_exact():
    for steps, _ in run_ranks(sums, 3, {"buckets": "layers", "encoding": "bf16"}):
        for (total, grads), (want, want_grads) in zip(steps, expected(3), strict=True):
            assert total == pytest.approx(want, rel=1e-12)
            for grad, want_grad in zip(grads, want_grads, strict=True):
                near = 0.03 * float(grad.abs().max())
                torch.testing.assert_close(grad, want_grad, rtol=0.0, atol=near)
    assert not torch.equal(grads[0], want_grads[0])


@mpi
def test_all_of_the_largest_are_all():
    for steps, _ in run_ranks(sums, 3, {"encoding": "topk", "share": 1.0}):
        for (_, grads), (_, want_grads) in zip(steps, expected(3), strict=True):
            for grad, want_grad in zip(grads, want_grads, strict=True):
                torch.testing.assert_close(grad, want_grad, rtol=1e-12, atol=1e-12)


def constant_gradient(world, share):
    """What is sent in all steps, and what is left, add up to all gradients."""
    model = nn.Linear(10, 1, bias=False).double()
    x = torch.arange(1.0, 11.0, dtype=torch.float64)[None] * (world.rank + 1)
    sync = GradientSync(model, world.transport, encoding="topk", share=share)
    sent = torch.zeros(10, dtype=torch.float64)
    for _ in range(STEPS):
        value = model(x).sum()
        sync.begin(value.detach())
        value.backward()
        sync.finish()
        assert int((model.weight.grad != 0).sum()) <= 2 * world.world_size
        sent += model.weight.grad[0]
    rest = sync.state_dict()["rest"].clone()
    world.transport.all_reduce(rest).wait()
    torch.testing.assert_close(sent + rest, STEPS * 3 * x[0] / (world.rank + 1))
    again = GradientSync(model, world.transport, encoding="topk", share=share)
    again.load_state_dict(sync.state_dict())
    assert torch.equal(again.state_dict()["rest"], sync.state_dict()["rest"])
    before = sync.state_dict()["rest"].clone()
    again.begin(torch.zeros(()))
    again.finish()  # its rest is its own
    assert torch.equal(sync.state_dict()["rest"], before)
    others = GradientSync(model, world.transport), GradientSync(nn.Linear(3, 1), world.transport)
    prints = [sync.fingerprint, *(other.fingerprint for other in others)]
    everyone = world.transport.all_gather_object(prints)
    assert len({text for prints in everyone for text in prints}) == 3 * world.world_size
    return sent.tolist()


@mpi
def test_what_is_not_sent_is_sent_later():
    first, second = run_ranks(constant_gradient, 2, 0.2)
    assert first == second  # bit by bit, or parameters would drift apart
    assert all(first)  # the small ones have had their turn


def strayed(world):
    """One rank has backwards of its own between the steps: nothing is sent, or counted."""
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.full((1, 3), world.rank + 1.0, dtype=torch.float64)
    sync = GradientSync(model, world.transport)
    for _ in range(2):
        if world.rank == 0:
            model(x).sum().backward()
        value = model(x).sum()
        sync.begin(value.detach())
        value.backward()
        sync.finish()
    return model.weight.grad.tolist()


@mpi
def test_backwards_between_steps_are_of_no_account():
    assert run_ranks(strayed, 2) == [[[3.0, 3.0, 3.0]]] * 2


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_refused(share):
    with pytest.raises(ConfigError, match=r"grad_share must lie in \(0, 1\]"):
        TrainConfig(grad_share=share)
