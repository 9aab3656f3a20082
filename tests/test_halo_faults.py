"""Under every policy: a rank that dies is named by the others, one that is late only slows them."""

import os
import signal
import time

import pytest

import gnn_dist as gd
from gnn_dist.errors import RankError
from gnn_dist.halo.policy import TERMS
from gnn_dist.testing import run_ranks

EPOCHS, FAULTY_EPOCH, VICTIM = 4, 2, 1
LATE_S, QUICK_S = 0.6, 20.0
TIMED = ("ssp",)  # use rows as soon as they come, so that results depend on when that is


class Faulty:
    """A transport that does something before or after the next exchange that it posts."""

    def __init__(self, inner):
        self.inner, self.before, self.after = inner, None, None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def exchange(self, *args):
        fault, self.before = self.before, None
        if fault is not None:
            fault()
        handle = self.inner.exchange(*args)
        fault, self.after = self.after, None
        if fault is not None:
            fault()
        return handle


def arm(trainer, transport, where, fault):
    """Let the fault happen once, from now on; without exchanges in training, in an evaluation."""
    if where == "backward":
        weight = next(trainer.model.parameters())
        handle = weight.register_hook(lambda grad: (handle.remove(), fault(), grad)[-1])
    else:
        setattr(transport, where, fault)


def train(world, folder, halo, where, fault):
    """Train a few epochs; return losses, late seconds, and which rank was named after how long."""
    world.transport = transport = Faulty(world.transport)
    config = gd.TrainConfig(
        halo=halo, hidden=8, layers=3, dropout=0.0, precision="fp64", profile_skew=True
    )
    trainer = gd.Trainer(config, gd.load_shard(folder, world), world)
    losses, late_s, begin = [], 0.0, time.monotonic()
    try:
        for epoch in range(EPOCHS):
            if epoch == FAULTY_EPOCH:
                begin = time.monotonic()
                if world.rank == VICTIM and fault is not None:
                    arm(trainer, transport, where, fault)
            report = trainer.steps.step(trainer.optimizer, epoch)
            losses.append(report.loss)
            late_s = max(late_s, sum(count.late_s for count in report.halo.values()))
            trainer.evaluate()
    except RankError as error:
        return error.rank, time.monotonic() - begin
    return losses, late_s


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def be_late():
    time.sleep(LATE_S)


def check_death(folder, halo, where, world_size):
    results = run_ranks(train, world_size, folder, halo, where, die, may_die=[VICTIM])
    assert results.pop(VICTIM) is None
    for rank, seconds in results:
        assert rank == VICTIM
        assert seconds < QUICK_S


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    graph = gd.load_dataset("sbm:nodes=120,blocks=4,features=8")
    path = tmp_path_factory.mktemp("faults")
    for parts in (2, 3):
        gd.write_partition(graph, gd.partition_graph(graph, parts, "random"), path / str(parts))
    return path


@pytest.mark.parametrize("halo", TERMS)
def test_a_rank_that_dies_between_posting_and_waiting_is_named(halo, folders):
    check_death(folders / "2", halo, "after", 2)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "after", "backward"])
@pytest.mark.parametrize("halo", TERMS)
def test_a_rank_that_dies_anywhere_is_named_by_all(halo, where, folders):
    check_death(folders / "3", halo, where, 3)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("where", ["before", "after", "backward"])
@pytest.mark.parametrize("halo", TERMS)
def test_a_late_rank_changes_nothing_but_time(halo, where, folders):
    late, plain = (
        run_ranks(train, 3, folders / "3", halo, where, fault) for fault in (be_late, None)
    )
    for (losses, _), (expected, _) in zip(late, plain, strict=True):
        assert len(losses) == len(expected) == EPOCHS
        assert halo in TIMED or losses == expected


@pytest.mark.mpi
def test_waiting_for_a_late_rank_is_told_from_transfer(folders):
    results = run_ranks(train, 2, folders / "2", "overlap", "before", be_late)
    late_s = [seconds for _, seconds in results]
    assert late_s[1 - VICTIM] > LATE_S / 2
    assert late_s[VICTIM] < LATE_S / 2
