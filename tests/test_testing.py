"""`run_ranks` itself: results, failures, deaths and hangs."""

import os
import signal
import time

import pytest
import torch

from gnn_dist.testing import RanksFailed, run_ranks


def identify(world):
    return world.rank, world.world_size, os.getpid()


def add(world, value):
    total = torch.tensor([value])
    world.transport.all_reduce(total).wait()
    return int(total)


def fail_on(world, rank):
    if world.rank == rank:
        raise KeyError("the cause")
    world.transport.barrier()


def die_on(world, rank):
    world.transport.barrier()  # else others may still be connecting to the rank that dies
    if world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def hang_on(world, rank):
    if world.rank == rank:
        time.sleep(60)


def return_tensor(world):
    return torch.full((3,), float(world.rank))


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_results_come_by_rank(world_size):
    results = run_ranks(identify, world_size)
    assert [r[:2] for r in results] == [(r, world_size) for r in range(world_size)]
    assert len({r[2] for r in results}) == world_size


@pytest.mark.mpi
def test_arguments_reach_every_rank():
    assert run_ranks(add, 3, 5) == [15, 15, 15]


@pytest.mark.mpi
def test_tensors_come_back():
    tensors = run_ranks(return_tensor, 2)
    assert [t.tolist() for t in tensors] == [[0.0] * 3, [1.0] * 3]


@pytest.mark.mpi
def test_a_failing_rank_is_named_before_its_consequences():
    with pytest.raises(RanksFailed, match=r"^rank 1: KeyError: 'the cause'") as caught:
        run_ranks(fail_on, 3, 1)
    first, *others = caught.value.failures
    assert (first.rank, first.kind) == (1, "KeyError")
    assert "fail_on" in first.details
    assert {f.kind for f in others} == {"RankError"}
    assert all("rank 1 failed: KeyError: 'the cause'" in f.message for f in others)


def test_a_death_is_caught():
    with pytest.raises(RanksFailed, match="rank 1: death: ended with exit code -9"):
        run_ranks(die_on, 2, 1)


def test_a_death_may_be_expected():
    assert run_ranks(die_on, 2, 1, may_die=[1]) == ["alive", None]


def test_a_hang_shows_its_stack():
    started = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 1: hang") as caught:
        run_ranks(hang_on, 2, 1, timeout_s=2.0)
    assert time.monotonic() - started < 15
    failure = next(f for f in caught.value.failures if f.rank == 1)
    assert "hang_on" in failure.details
