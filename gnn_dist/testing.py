"""Run a function on several ranks inside a test.

    def body(world, value):                    def test_sum():
        total = torch.tensor([value])              assert run_ranks(body, 3, 5) == [15] * 3
        world.transport.all_reduce(total).wait()
        return int(total)

The same test runs on gloo, each rank a process, and under `mpirun -n 3 python -m pytest -m mpi`
on MPI, each rank one of the test processes.

`run_virtual` has the ranks be threads of this process, which starts at once and pickles nothing:
for tests of what models compute, not of communication.
"""

import faulthandler
import functools
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from gnn_dist.comm.control import Control
from gnn_dist.comm.detect import LaunchInfo
from gnn_dist.comm.mpi_transport import MpiTransport
from gnn_dist.comm.rendezvous import introduce, join_control
from gnn_dist.comm.virtual import run_virtual
from gnn_dist.comm.world import World, detect_launch
from gnn_dist.errors import GnnDistError

__all__ = ["RankFailure", "RanksFailed", "mpi_transport", "run_ranks", "run_virtual"]

REAP_S = 5.0
TIMEOUT_S = 30.0
# torch imports its compiler when the first optimiser is made.
PRELOAD = ["torch._dynamo", "torch_geometric.nn", "gnn_dist.train.trainer", "gnn_dist.testing"]


@dataclass(frozen=True)
class RankFailure:
    """How one rank failed.

    Attributes:
        rank: The rank.
        kind: Name of the exception's class, or `death` or `hang`.
        message: The exception's message, or how the process ended.
        details: The traceback, or the stacks of a hung rank.
        at: When, on a clock that the ranks share.
    """

    rank: int
    kind: str
    message: str
    details: str = ""
    at: float = float("inf")

    @property
    def is_consequence(self) -> bool:
        """Whether this rank only tells of another one's failure."""
        return self.kind == "RankError"


class RanksFailed(GnnDistError, RuntimeError):
    """One rank or more failed in `run_ranks`.

    Attributes:
        failures: All failures, the first cause first.
    """

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        self.failures = sorted(failures, key=lambda f: (f.is_consequence, f.at))
        parts = [
            f"rank {f.rank}: {f.kind}: {f.message}\n{f.details}".rstrip() for f in self.failures
        ]
        super().__init__("\n\n".join(parts))


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,  # noqa: ANN401 - passed on to fn
    timeout_s: float | None = None,
    backend: str = "gloo",
    may_die: Collection[int] = (),
    silence_s: float = 15.0,
) -> list[Any]:
    """Run `fn(world, *args)` on every rank and return the results by rank.

    Under mpirun the function runs inside this process, on a sub-communicator of `world_size`
    ranks, and every rank returns all results; the test is skipped if there are too few ranks, or
    if a rank is to die.

    Args:
        fn: A function of a module that the ranks can import.
        world_size: How many ranks.
        *args: Picklable arguments, the same for every rank.
        timeout_s: After this long, ranks that still run have hung and are killed. By default 30
            seconds, times GNN_DIST_TEST_PATIENCE of the environment (for a machine under load).
        backend: The backend of the world.
        may_die: Ranks that may end without a result; theirs is None.
        silence_s: Seconds without a sign of life after which a rank counts as gone.

    Raises:
        RanksFailed: A rank raised, died or hung.
    """
    if timeout_s is None:
        timeout_s = TIMEOUT_S * float(os.environ.get("GNN_DIST_TEST_PATIENCE", "1"))
    if detect_launch(os.environ).is_mpi:
        return _run_in_process(fn, world_size, args, timeout_s, may_die)
    with tempfile.TemporaryDirectory(prefix="gnn-dist-test-") as folder:
        work = _Work(pickle.dumps((fn, args)), backend, timeout_s, silence_s)
        return _Run(Path(folder), work, world_size).results(may_die)


@dataclass(frozen=True)
class _Work:
    """What every rank is to do: a pickled function with its arguments, in which world."""

    call: bytes
    backend: str
    timeout_s: float
    silence_s: float


class _Run:
    """The processes of one `run_ranks`."""

    def __init__(self, folder: Path, work: _Work, world_size: int) -> None:
        self._folder = folder
        context = _context()
        self._pipes: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        for rank in range(world_size):
            info = LaunchInfo(
                "local",
                rank,
                world_size,
                local_rank=rank,
                local_world_size=world_size,
                store=str(folder / "store"),
                threads_set=True,
            )
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main,
                args=(work, info, str(folder / f"stacks-{rank}"), theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        # A start waits for the server to load: that is not the ranks' time.
        self._deadline = time.monotonic() + work.timeout_s

    def results(self, may_die: Collection[int]) -> list[Any]:
        """Wait for all ranks; return their results or raise their failures."""
        results: list[Any] = [None] * len(self._pipes)
        failures: list[RankFailure] = []
        waiting = dict(enumerate(self._pipes))
        try:
            while waiting and time.monotonic() < self._deadline + 1.0:
                left_s = max(0.0, self._deadline + 1.0 - time.monotonic())
                ready = wait(list(waiting.values()), left_s)
                for rank in [r for r, pipe in waiting.items() if pipe in ready]:
                    outcome = self._outcome(rank, waiting.pop(rank))
                    if not isinstance(outcome, RankFailure):
                        results[rank] = pickle.loads(outcome)
                    elif not (rank in may_die and outcome.kind == "death"):
                        failures.append(outcome)
            failures += [self._hung(rank) for rank in waiting if rank not in may_die]
        finally:
            self._end()
        if failures:
            raise RanksFailed(failures)
        return results

    def _outcome(self, rank: int, pipe: Connection) -> bytes | RankFailure:
        try:
            ok, payload = pickle.loads(pipe.recv_bytes())
        except EOFError:
            process = self._processes[rank]
            process.join(REAP_S)
            return RankFailure(rank, "death", f"ended with exit code {process.exitcode}")
        if ok:
            return bytes(payload)
        failure: RankFailure = payload
        return failure

    def _hung(self, rank: int) -> RankFailure:
        path = self._folder / f"stacks-{rank}"
        stacks = path.read_text() if path.exists() else ""
        return RankFailure(rank, "hang", "still ran at the time-out; its stacks:", stacks)

    def _end(self) -> None:
        for process in self._processes:
            process.join(0.0 if time.monotonic() > self._deadline else REAP_S)
            if process.is_alive():
                process.kill()
                process.join(REAP_S)
            process.close()
        for pipe in self._pipes:
            pipe.close()


def _context() -> ForkServerContext:
    """Return a context whose server has loaded what is slow, so that a rank starts at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _rank_main(work: _Work, info: LaunchInfo, stacks: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    with open(stacks, "w") as file:
        # A thread without Python's lock: it also shows where native code hangs.
        faulthandler.dump_traceback_later(work.timeout_s, file=file)
        try:
            fn, args = pickle.loads(work.call)
            with World.from_launch(
                info, work.backend, timeout_s=work.timeout_s, silence_s=work.silence_s
            ) as world:
                payload = pickle.dumps(fn(world, *args))
            outcome: tuple[bool, Any] = (True, payload)
        except BaseException as error:
            outcome = (False, _failure(info.rank, error))
        faulthandler.cancel_dump_traceback_later()
    # Bytes: a tensor that is sent as an object goes by file descriptor and dies with this process.
    pipe.send_bytes(pickle.dumps(outcome))
    pipe.close()


def _failure(rank: int, error: BaseException) -> RankFailure:
    details = "".join(traceback.format_exception(error))
    return RankFailure(rank, type(error).__name__, str(error), details, time.monotonic())


@functools.cache
def mpi_transport() -> MpiTransport:
    """Collective. Return the transport of all ranks that mpirun started, made once."""
    return MpiTransport.of_world(Control(detect_launch(os.environ).rank), timeout_s=120.0)


def _run_in_process(
    fn: Callable[..., Any],
    world_size: int,
    args: tuple[Any, ...],
    timeout_s: float,
    may_die: Collection[int],
) -> list[Any]:
    """Collective. Run the body on the first ranks of MPI's world and share the results."""
    import pytest

    everyone = mpi_transport()
    if world_size > everyone.world_size:
        pytest.skip(f"needs {world_size} ranks, mpirun started {everyone.world_size}")
    if may_die:
        pytest.skip("a rank that dies would end mpirun")
    group = everyone.split(int(everyone.rank >= world_size))
    outcome: tuple[bool, Any] = (True, None)
    if everyone.rank < world_size:
        try:
            with _world_over(group, timeout_s) as world:
                outcome = (True, fn(world, *args))
        except Exception as error:
            outcome = (False, _failure(everyone.rank, error))
    outcomes = everyone.all_gather_object(outcome)[:world_size]
    failures = [payload for ok, payload in outcomes if not ok]
    if failures:
        raise RanksFailed(failures)
    return [payload for _, payload in outcomes]


def _world_over(transport: Any, timeout_s: float) -> World:  # noqa: ANN401 - a BaseTransport
    """Collective. Return a world with a control channel of its own over a group of MPI ranks."""

    def gather(what: str, value: dict[str, Any]) -> list[dict[str, Any]]:
        gathered: list[dict[str, Any]] = transport.all_gather_object(value)
        return gathered

    hosts = [hello["host"] for hello in introduce(gather, None)]
    control = join_control(transport.rank, hosts, gather)
    transport.control, transport.timeout_s = control, timeout_s
    transport.world_ranks = tuple(range(transport.world_size))
    return World(transport, control, local_rank=transport.rank)
