"""What all tests share: the time-out of a deadlock, and MPI when pytest runs under mpirun."""

import faulthandler
import os
import sys

import pytest

from gnn_dist.comm.detect import detect_launch

DEADLOCK_S = 300.0


@pytest.fixture(scope="session", autouse=True)
def _mpi_session(request):
    """Under mpirun: meet before the first test and after the last, and never hang on a failure."""
    if not detect_launch(os.environ).is_mpi:
        yield
        return
    from gnn_dist.testing import mpi_transport

    # One test process that waits for ever makes mpirun wait for ever.
    faulthandler.dump_traceback_later(DEADLOCK_S, repeat=False, file=sys.__stderr__, exit=True)
    mpi_transport().barrier()
    yield
    if request.session.testsfailed == 0:
        # Tests of failures leave MPI unfinalized, and mpirun kills the ranks that are still
        # running when such a process ends. Here all ranks live and have no test left to run.
        from mpi4py import MPI

        MPI.Finalize()
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def instruction_set(request):
    """Each set of the compiled operators that this CPU has."""
    import kernel_cases

    if request.param not in kernel_cases.instruction_sets():
        pytest.skip(f"this CPU has no {request.param}")
    with kernel_cases.instruction_set(request.param):
        yield request.param


@pytest.fixture
def by_threads():
    """Call a function with 1, 2 and 4 threads, and return the three results."""
    import kernel_cases

    def call(function):
        results = []
        for number in (1, 2, 4):
            with kernel_cases.threads(number):
                results.append(function())
        return results

    return call
