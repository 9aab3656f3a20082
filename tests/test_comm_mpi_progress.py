"""Messages move while nobody waits for them, and the thread that sees to it sleeps and ends."""

import threading
import time

import pytest
import torch

from gnn_dist.comm.detect import detect_launch
from gnn_dist.comm.mpi_progress import MpiProgress
from gnn_dist.errors import ConfigError
from gnn_dist.testing import run_ranks


class Polls:
    """Complete after some polls."""

    def __init__(self, needed):
        self.needed, self.done = needed, threading.Event()

    def poll(self):
        self.needed -= 1
        if self.needed <= 0:
            self.done.set()
        return self.needed <= 0


def test_operations_are_polled_until_they_are_complete():
    progress = MpiProgress()
    operations = [Polls(1), Polls(20)]
    for operation in operations:
        progress.add(operation)
    assert all(operation.done.wait(10.0) for operation in operations)
    later = Polls(2)
    progress.add(later)
    assert later.done.wait(10.0)
    progress.close()
    progress.close()
    assert [operation.needed for operation in operations] == [0, 0]


def test_who_waits_polls_alone():
    progress = MpiProgress()
    operation = Polls(10**9)
    with progress:
        progress.add(operation)
        time.sleep(0.05)
        assert operation.needed == 10**9
    deadline = time.monotonic() + 10.0
    while operation.needed == 10**9 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert operation.needed < 10**9
    progress.close()
    assert not [t for t in threading.enumerate() if t.name == "gnn-dist-mpi-progress"]


def arrive_by_themselves(world):
    """Rows are here before they are waited for, though too many for any buffer on the way."""
    num_rows = 1 << 18
    ptr = [num_rows * r for r in range(world.world_size + 1)]
    send = torch.full((ptr[-1], 8), float(world.rank))
    recv = torch.zeros(ptr[-1], 8)
    world.transport.barrier()
    handle = world.transport.exchange(send, ptr, recv, ptr, 0)
    handle.done()  # from here on gloo looks by itself
    deadline = time.monotonic() + 20.0
    while handle.completed_s is None and time.monotonic() < deadline:
        time.sleep(0.01)  # calls nothing of the transport
    seen = handle.completed_s is not None
    handle.wait()
    assert recv.view(world.world_size, -1)[:, -1].tolist() == list(range(world.world_size))
    return seen


@pytest.mark.mpi
def test_rows_arrive_while_nobody_waits():
    assert run_ranks(arrive_by_themselves, 2) == [True, True]


MPIRUN = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, True),
        ({"MPIR_CVAR_ASYNC_PROGRESS": "1"}, False),
        ({"I_MPI_ASYNC_PROGRESS": "on"}, False),
        ({"OMPI_MCA_btl_tcp_progress_thread": "1"}, False),
        ({"MPIR_CVAR_ASYNC_PROGRESS": "0"}, True),
        ({"GNN_DIST_MPI_PROGRESS": "0"}, False),
        ({"GNN_DIST_MPI_PROGRESS": "1", "MPIR_CVAR_ASYNC_PROGRESS": "1"}, True),
    ],
)
def test_mpi_is_polled_unless_it_moves_messages_itself(told, expected):
    assert detect_launch({**MPIRUN, **told}).mpi_progress is expected
    assert detect_launch(told).mpi_progress is expected


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match="GNN_DIST_MPI_PROGRESS must be 0 or 1, got 'yes'"):
        detect_launch({"GNN_DIST_MPI_PROGRESS": "yes"})
