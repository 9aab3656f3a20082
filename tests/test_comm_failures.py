"""Nothing hangs: a rank that dies, fails, stops or is late is named by all others, quickly."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

from gnn_dist.errors import CommError, ConfigError, GraphError, RankError
from gnn_dist.testing import RanksFailed, run_ranks

QUICK_S = 8.0


def exchange_rows(world, channel=0, rows=1000):
    """One all-to-all of `rows` rows for every rank."""
    ptr = [rows * r for r in range(world.world_size + 1)]
    send, recv = torch.ones(ptr[-1], 8), torch.zeros(ptr[-1], 8)
    return world.transport.exchange(send, ptr, recv, ptr, channel)


def loop_until_error(world, rounds, act_at, act, kind):
    """Communicate in rounds; in one of them `act`. Return (error, seconds to notice)."""
    operations = {
        "exchange": lambda: exchange_rows(world),
        "all_reduce": lambda: world.transport.all_reduce(torch.ones(1000)),
    }
    try:
        for i in range(rounds):
            if i == act_at:
                noticed = time.monotonic()
                act(world)
            operations[kind]().wait()
    except RankError as error:
        return str(error), error.rank, time.monotonic() - noticed
    return "no error", -1, 0.0


def kill_rank(rank):
    def act(world):
        if world.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def body_death(world, victim, kind):
    return loop_until_error(world, 50, 20, kill_rank(victim), kind)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("kind", ["exchange", "all_reduce"])
def test_a_dead_rank_is_named_by_all_others(victim, kind):
    results = run_ranks(body_death, 4, victim, kind, may_die=[victim])
    assert results.pop(victim) is None
    for message, rank, seconds in results:
        assert rank == victim
        assert f"rank {victim} (pid " in message
        assert "ended without notice (killed or crashed)" in message
        assert seconds < QUICK_S


def blocked_on_another(world):
    """Rank 1 waits for rank 0, which is alive but waits for rank 2, which dies."""
    if world.rank == 2:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    give = {1: [0, 0, 0, 0], 0: [0, 0, 0, 0]}[world.rank]
    source = {1: 0, 0: 2}[world.rank]
    take = [1 if r > source else 0 for r in range(4)]
    recv = torch.zeros(1)
    try:
        world.transport.exchange(torch.zeros(1), give, recv, take, 0).wait()
    except RankError as error:
        seconds = time.monotonic() - started
        if world.rank == 0:
            time.sleep(4.0)  # so that it is not the closing of rank 0 that wakes rank 1
        return error.rank, seconds
    return None


def test_a_rank_that_waits_for_a_healthy_one_is_woken():
    results = run_ranks(blocked_on_another, 3, may_die=[2])
    assert [r and r[0] for r in results] == [2, 2, None]
    assert all(r[1] < 3.5 for r in results[:2])


def waiting_in_a_group(world):
    """The victim is not in the group that the others wait in."""
    group = world.split(int(world.rank == 3))
    if world.rank == 3:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    recv = torch.zeros(1)
    take = [0, 1, 1, 1] if group.rank == 1 else [0, 0, 0, 0]
    try:
        # Rank 1 waits for a message of rank 0 that never comes.
        group.transport.exchange(torch.zeros(1), [0] * 4, recv, take, 0).wait()
        time.sleep(1.0)
        group.transport.barrier()
    except RankError as error:
        return error.rank
    return None


def test_groups_hear_of_ranks_outside():
    assert run_ranks(waiting_in_a_group, 4, may_die=[3]) == [3, 3, 3, None]


def body_raises(world):
    if world.rank == 1:
        raise GraphError("x has no rows")
    exchange_rows(world).wait()


@pytest.mark.mpi
def test_a_rank_that_raises_stops_the_others():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(body_raises, 3)
    first, *others = caught.value.failures
    assert (first.rank, first.kind, first.message) == (1, "GraphError", "x has no rows")
    assert {f.message for f in others} == {"rank 1 failed: x has no rows"}
    assert {f.rank for f in others} == {0, 2}


def body_late(world):
    world.control.progress("reading features")
    if world.rank == 1:
        time.sleep(3)
        try:
            world.control.check()
        except RankError as error:
            return str(error), error.rank
    try:
        exchange_rows(world).wait(timeout_s=0.7)
    except RankError as error:
        return str(error), error.rank
    return "no error", -1


@pytest.mark.mpi
def test_a_late_rank_is_named_with_its_phase():
    results = run_ranks(body_late, 3)
    assert len(set(results)) == 1
    message, rank = results[0]
    assert rank == 1
    assert "rank 1 (pid" in message
    assert "is late, it is busy with: reading features; rank " in message
    assert "waited 0.7 s in exchange on channel 0" in message


def body_mismatch(world):
    """Rank 0 enters another operation than the others."""
    try:
        if world.rank == 0:
            exchange_rows(world).wait(timeout_s=1.0)
        else:
            world.transport.all_reduce(torch.ones(3)).wait(timeout_s=1.0)
    except RankError as error:
        return str(error)
    return "no error"


@pytest.mark.mpi
def test_different_operations_are_shown():
    for message in run_ranks(body_mismatch, 3):
        assert "all ranks wait, but for different things" in message
        assert "exchange on channel 0" in message
        assert "all_reduce" in message


def body_left(world):
    if world.rank == 1:
        world.close()
        return "left"
    try:
        exchange_rows(world).wait(timeout_s=2.0)
    except RankError as error:
        return str(error), error.rank
    return "no error"


def test_a_rank_that_ended_early_is_named():
    message, rank = run_ranks(body_left, 2)[0]
    assert rank == 1
    assert "rank 1 (pid" in message
    assert "has already ended, but rank 0" in message


def body_stopped(world, victim):
    """The victim stops; a helper process continues it after the others have noticed."""
    # Fast patience for the test: the real one is 15 s.
    if world.rank == victim:
        if os.fork() == 0:
            time.sleep(5)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    started = time.monotonic()
    try:
        exchange_rows(world).wait()
        exchange_rows(world).wait()
    except RankError as error:
        return str(error), error.rank, time.monotonic() - started
    return "no error", -1, 0


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_stopped_rank_is_named(victim):
    results = run_ranks(body_stopped, 3, victim, silence_s=1.5)
    for message, rank, seconds in results:
        assert rank == victim
        assert "did not answer for" in message
        assert seconds < QUICK_S


def busy_with_the_lock(world):
    """A rank that holds Python's lock in native code cannot beat, but is alive."""
    if world.rank == 1:
        import ctypes

        ctypes.PyDLL(None).sleep(4)  # PyDLL keeps the lock
    exchange_rows(world).wait()
    return "fine"


def test_a_busy_rank_is_not_taken_for_a_dead_one():
    assert run_ranks(busy_with_the_lock, 2, silence_s=1.0) == ["fine", "fine"]


def errors_repeat(world):
    """After a failure every operation raises, and the same error."""
    if world.rank == 1:
        world.abort(ConfigError("no such option"))
    messages = set()
    world.control.failed.wait(5)
    pending = None
    for operation in (
        lambda: exchange_rows(world),
        lambda: world.transport.all_reduce(torch.ones(1)),
        lambda: world.transport.broadcast(torch.ones(1)),
        world.transport.barrier,
        lambda: world.split(0),
        lambda: world.raise_everywhere(None, "x"),
    ):
        try:
            pending = operation()
        except RankError as error:
            messages.add((str(error), error.rank))
        else:
            messages.add((f"no error: {pending}", -1))
    return messages


@pytest.mark.mpi
def test_every_later_operation_raises_the_same():
    expected = {("rank 1 failed: no such option", 1)}
    assert run_ranks(errors_repeat, 3) == [expected] * 3


def wait_then_fail(world):
    handle = exchange_rows(world) if world.rank == 0 else None
    if world.rank == 1:
        time.sleep(0.5)
        world.abort("out of memory")
        return None
    while not handle.done():
        time.sleep(0.01)
    try:
        handle.wait()
    except RankError as error:
        return str(error)
    return "no error"


@pytest.mark.mpi
def test_done_turns_true_when_waiting_would_raise():
    assert run_ranks(wait_then_fail, 2) == ["rank 1 failed: out of memory", None]


def threads_left(world):
    world.close()
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("gnn-dist"))


def test_a_closed_world_leaves_no_threads_and_no_group():
    assert run_ranks(threads_left, 2) == [[], []]
    assert not dist.is_initialized()


def unpicklable(world):
    return lambda: None


def test_an_error_outside_the_body_is_shown():
    with pytest.raises(RanksFailed, match=r"rank 0: (AttributeError|PicklingError)"):
        run_ranks(unpicklable, 2)


def test_errors_are_of_the_tree():
    assert issubclass(RankError, CommError)
    assert issubclass(RankError, RuntimeError)
