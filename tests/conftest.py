"""What all tests share: the time-out of a deadlock, and MPI when pytest runs under mpirun."""

import faulthandler
import os
import sys

import pytest

from gnn_dist.comm.detect import detect_launch

DEADLOCK_S = 300.0


@pytest.fixture(scope="session", autouse=True)
def _mpi_session():
    """Under mpirun: meet before the first test, and never hang after a failure."""
    if not detect_launch(os.environ).is_mpi:
        yield
        return
    from gnn_dist.testing import mpi_transport

    # One test process that waits for ever makes mpirun wait for ever.
    faulthandler.dump_traceback_later(DEADLOCK_S, repeat=False, file=sys.__stderr__, exit=True)
    mpi_transport().barrier()
    yield
    faulthandler.cancel_dump_traceback_later()
