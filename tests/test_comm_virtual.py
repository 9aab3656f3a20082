"""Ranks that are threads keep the contract of transports, and never hang."""

import threading
import time

import pytest
import test_comm_transport as contract
import torch

from gnn_dist.errors import CommError, ConfigError, RankError
from gnn_dist.testing import run_virtual


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
def test_exchange_moves_the_right_rows(world_size, shape):
    got = run_virtual(contract.exchange_all, world_size, shape, [torch.float32])
    assert got == [[]] * world_size


def test_exchange_and_all_reduce_of_every_dtype():
    assert run_virtual(contract.exchange_all, 3, (3,), contract.DTYPES) == [[]] * 3
    assert run_virtual(contract.reduce_all, 3) == [[]] * 3
    or_, and_ = [True, True, False], [True, False, False]
    assert run_virtual(contract.reduce_booleans, 3) == [[or_, or_, and_]] * 3
    expected = (6.0, torch.Size((0, 4)), [3.0] * 3, True)
    assert run_virtual(contract.reduce_awkward, 3) == [expected] * 3


@pytest.mark.parametrize("order", ["posted", "reverse", "differs"])
def test_channels_are_independent(order):
    assert run_virtual(contract.many_channels, 3, order) == [True] * 3


@pytest.mark.parametrize(
    ("body", "world_size"),
    [
        (contract.channels_started_in_different_orders, 2),
        (contract.same_channel_twice, 3),
        (contract.keep_others_rows, 2),
        (contract.poll_until_done, 3),
        (contract.drop_handles, 2),
    ],
)
def test_the_contract_holds(body, world_size):
    assert run_virtual(body, world_size) == [True] * world_size


def test_messages_are_split_broadcast_and_gathered():
    assert run_virtual(contract.in_small_pieces, 3) == [([], 64, True, True)] * 3
    assert run_virtual(contract.broadcast_from, 3, 1) == [[[[1.0, 1.0]] * 2] * 3] * 3
    expected = [{"rank": r, "text": "x" * r * 999} for r in range(3)]
    assert run_virtual(contract.gather_objects, 3) == [expected] * 3


@pytest.mark.parametrize("world_size", [3, 4])
def test_groups_are_independent(world_size):
    assert run_virtual(contract.split_in_groups, world_size) == contract.groups_of(world_size)


def test_a_wrong_argument_is_refused_and_the_world_still_works():
    for message in run_virtual(contract.refuse, 2, "dtype"):
        assert "equal dtypes" in message


def fails_on_one(world):
    if world.rank == 1:
        raise KeyError("the cause")
    world.transport.barrier()


def test_the_first_cause_is_raised_and_stops_the_others():
    started = time.monotonic()
    with pytest.raises(KeyError, match="the cause") as caught:
        run_virtual(fails_on_one, 3)
    assert time.monotonic() - started < 10
    assert caught.value.__notes__ == ["on virtual rank 1 of 3"]
    assert not [t for t in threading.enumerate() if t.name.startswith("gnn-dist-rank")]


def disagree(world):
    if world.rank == 0:
        world.transport.all_reduce(torch.ones(2)).wait()
    else:
        world.transport.exchange(torch.ones(1), [0, 1, 1], torch.ones(1), [0, 1, 1], 5).wait()


def ends_early(world):
    if world.rank == 0:
        world.transport.barrier()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (disagree, "rank 0 waits in all_reduce, rank 1 waits in exchange on channel 5"),
        (ends_early, "rank 0 waits in all_reduce, rank 1 has ended"),
    ],
)
def test_ranks_that_wait_for_each_other_fail_at_once(body, message):
    started = time.monotonic()
    with pytest.raises(RankError, match=message):
        run_virtual(body, 2)
    assert time.monotonic() - started < 10


def sleeps(world):
    if world.rank == 1:
        time.sleep(1.5)
    world.transport.barrier()


def test_a_late_rank_is_named():
    with pytest.raises(CommError, match=r"rank 1 still ran after 0.5 s"):
        run_virtual(sleeps, 2, timeout_s=0.5)


def agreed_failure(world):
    error = ConfigError("wrong") if world.rank == 1 else None
    world.raise_everywhere(error, "checking")


def test_raise_everywhere():
    with pytest.raises(ConfigError, match="wrong"):
        run_virtual(agreed_failure, 3)


def gradient_mode(world):
    return torch.is_grad_enabled()


def test_ranks_inherit_whether_gradients_are_wanted():
    with torch.no_grad():
        assert run_virtual(gradient_mode, 2) == [False, False]
    assert run_virtual(gradient_mode, 2) == [True, True]
