"""`--ranks N`: start the ranks of one machine, watch them, and leave nothing behind.

The launcher holds no data and loads no torch. The ranks meet at a file in a private folder, so no
port can be taken.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gnn_dist.errors import ConfigError
from gnn_dist.launch import child

__all__ = ["launch_ranks", "threads_per_rank"]

LOG = logging.getLogger(__name__)
POLL_S = 0.05
KILL_AFTER_S = 5.0  # from SIGTERM to SIGKILL
# For the last rank, once all others have ended after a failure: on a machine with more ranks than
# cores, or a slow disk, hearing of it and saying so takes seconds.
LAST_RANK_S = 10.0
INPUT_IS_WRONG = 2
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def launch_ranks(
    argv: Sequence[str],
    num_ranks: int,
    *,
    backend: str,
    grace_s: float = 20.0,
    command: Sequence[str] | None = None,
) -> int:
    """Run a command as `num_ranks` ranks on this machine and wait for all of them.

    When one rank fails, the others, who hear of it over the control channel, have `grace_s` to
    end by themselves; then they are terminated, then killed. SIGINT, SIGTERM and SIGHUP go on to
    the ranks; a second one kills them. When this process is killed, the kernel kills the ranks.

    Args:
        argv: Arguments of the command.
        num_ranks: How many ranks to start, at least 1.
        backend: With `mpi` the ranks are started by `mpiexec`.
        grace_s: Seconds between the first failure and the termination of the other ranks.
        command: What to run; `python -m gnn_dist` by default.

    Returns:
        0 if every rank returned 0; 2 if any returned 2, since then the input is wrong and the
        others only heard of it; else the code of the rank that failed first, 1 for a signal.

    Raises:
        ConfigError: `num_ranks` is not positive, or there is no mpiexec.
    """
    if num_ranks < 1:
        raise ConfigError(f"--ranks must be at least 1, got {num_ranks}")
    line = [*(command or [sys.executable, "-m", "gnn_dist"]), *argv]
    folder = Path(tempfile.mkdtemp(prefix="gnn-dist-"))
    try:
        ranks = _Ranks(grace_s)
        with ranks.forwarding_signals(), ranks:
            for arguments, env in _plan(line, num_ranks, backend, folder):
                ranks.start(arguments, env)
            return ranks.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def threads_per_rank(num_ranks: int) -> int:
    """Return each rank's share of the cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores // num_ranks)


def _plan(
    line: Sequence[str], num_ranks: int, backend: str, folder: Path
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the processes to start: arguments and environment."""
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", str(threads_per_rank(num_ranks)))
    if backend == "mpi":
        # mpiexec ends its ranks itself when it is terminated. As root, or with more ranks than
        # cores, Open MPI must be told that this is meant.
        for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
            env.setdefault(name, "1")
        env.setdefault("OMPI_MCA_rmaps_base_oversubscribe", "1")
        env.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        start = [_find_mpiexec(env), "-n", str(num_ranks), *line]
        yield _guarded(start, signal.SIGTERM), env
        return
    env["GNN_DIST_STORE"] = str(folder / "store")
    env["WORLD_SIZE"] = env["LOCAL_WORLD_SIZE"] = str(num_ranks)
    if sys.platform.startswith("linux"):
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # host names need not resolve
    for rank in range(num_ranks):
        ids = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        yield _guarded(line, signal.SIGKILL), {**env, **ids}


def _guarded(line: Sequence[str], with_signal: int) -> list[str]:
    script = str(Path(child.__file__).resolve())
    guard = [sys.executable, "-I", "-S", script, str(os.getpid()), str(int(with_signal))]
    return [*guard, *line]


def _find_mpiexec(env: Mapping[str, str]) -> str:
    """Return mpiexec beside this Python, so that it fits the library of the same environment."""
    beside = Path(sys.executable).parent
    found = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{env.get('PATH', '')}")
    if found is None:
        raise ConfigError(
            "backend 'mpi' needs mpiexec, which is neither beside Python "
            f"({beside}) nor on PATH: pip install gnn-dist[mpi], or load the cluster's MPI module"
        )
    return found


class _Ranks:
    """The started processes. Leaving it as a context ends all that still run."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._codes: list[int] = []  # of ended ranks, the first to end first
        self._signals = 0

    def start(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """Start one process, in a group of its own so that a terminal signals it only once."""
        self._processes.append(
            subprocess.Popen(arguments, env=env, stdin=subprocess.DEVNULL, process_group=0)
        )

    def wait(self) -> int:
        """Return the exit code of all, after ending those that outlive a failure too long."""
        deadline: float | None = None
        terminated = False
        running = list(self._processes)
        while running:
            ended = [p for p in running if p.poll() is not None]
            for process in ended:
                self._report(process, by_us=terminated or self._signals > 0)
            self._codes += [p.returncode for p in ended]
            running = [p for p in running if p not in ended]
            if deadline is None and (self._signals or any(self._codes)):
                deadline = time.monotonic() + self._grace_s
            if deadline is not None and ended and len(running) == 1:
                # It is stopped, or cannot hear: whoever could, has ended by itself.
                deadline = min(deadline, time.monotonic() + LAST_RANK_S)
            if self._signals > 1:
                self._send(signal.SIGKILL)
            elif deadline is not None and time.monotonic() > deadline:
                self._send(signal.SIGKILL if terminated else signal.SIGTERM)
                terminated, deadline = True, time.monotonic() + KILL_AFTER_S
            if running:
                time.sleep(POLL_S)
        return _exit_code(self._codes)

    def _report(self, process: "subprocess.Popen[bytes]", *, by_us: bool) -> None:
        """Name a rank that a signal ended: it could not say anything itself."""
        if process.returncode < 0 and not by_us:
            rank, name = self._processes.index(process), signal.Signals(-process.returncode).name
            LOG.error("gnn-dist: rank %d (pid %d) was ended by %s", rank, process.pid, name)

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Send what this process is told on to the ranks."""

        def forward(number: int, frame: FrameType | None) -> None:
            self._signals += 1
            self._send(number)

        before = {number: signal.signal(number, forward) for number in FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        self._send(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _send(self, number: int) -> None:
        """Signal the group of every rank that still runs: the rank and what it started."""
        for process in self._processes:
            if process.returncode is None:  # not reaped, so its pid is still its own
                try:
                    os.killpg(process.pid, number)
                except (ProcessLookupError, PermissionError):
                    continue


def _exit_code(codes: Sequence[int]) -> int:
    failed = [code for code in codes if code != 0]
    if not failed:
        return 0
    if INPUT_IS_WRONG in failed:
        return INPUT_IS_WRONG
    return failed[0] if failed[0] > 0 else 1
