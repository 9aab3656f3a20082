"""The world: which rank this process is, of how many, and how it talks to the others.

This module and the command line are the only places that read environment variables.
"""

import atexit
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from gnn_dist import errors
from gnn_dist.comm.control import Control
from gnn_dist.comm.detect import LaunchInfo, detect_launch
from gnn_dist.comm.joining import join
from gnn_dist.comm.local_transport import LocalTransport
from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError, GnnDistError, RankError, nearest

__all__ = ["BACKENDS", "World", "detect_launch", "world_of_process"]

BACKENDS = ("auto", "gloo", "nccl", "mpi")


class World:
    """One rank's view of all ranks. It is passed to what communicates, never kept globally.

    Make one with `World.from_env()` or `World.single()`. As a context manager it tells the other
    ranks when its body fails, so that they stop too.

    Attributes:
        rank: This process's rank.
        world_size: How many ranks there are.
        local_rank: The rank among those of this host.
        device: Where this rank's tensors lie.
        transport: Moves rows between ranks.
        control: Knows who failed and who is late.

    Example:
        >>> with World.single() as world:
        ...     world.rank, world.world_size, world.transport.backend
        (0, 1, 'local')
    """

    def __init__(
        self,
        transport: Transport,
        control: Control,
        *,
        local_rank: int = 0,
        device: torch.device | None = None,
        parent: "World | None" = None,
        owns_torch: bool = False,
    ) -> None:
        self.transport = transport
        self.control = control
        self.rank = transport.rank
        self.world_size = transport.world_size
        self.local_rank = local_rank
        self.device = device or torch.device("cpu")
        self._parent = parent
        self._owns_torch = owns_torch
        self._closed = False
        self._agreed: BaseException | None = None
        self._at_exit = functools.partial(_end_at_exit, self)
        if parent is None and self.world_size > 1:
            # There is no destructor: somebody may still hold the transport, and a rank that ends
            # without a goodbye counts as dead. So an open world lives as long as the process.
            atexit.register(self._at_exit)

    @classmethod
    def from_env(
        cls,
        backend: str = "auto",
        *,
        timeout_s: float = 300.0,
        silence_s: float = 15.0,
        device: torch.device | str | None = None,
    ) -> Self:
        """Collective. Join the ranks that a launcher started together with this process.

        It understands torchrun, Slurm's srun, Open MPI, MPICH, Intel MPI, MVAPICH and our own
        `--ranks N`. A process that no launcher started is a world of one rank.

        Args:
            backend: `auto`, `gloo`, `nccl` or `mpi`. `auto` takes mpi under mpirun if mpi4py is
                installed, else nccl if every rank has a GPU of its own, else gloo.
            timeout_s: How long any wait may take before it fails with the name of who is late.
            silence_s: How long a process may show no sign of life before it counts as gone.
            device: Where tensors lie; the rank's GPU for nccl, the CPU otherwise.

        Raises:
            ConfigError: The backend cannot be used here, or the port is in use.
            CommError: The ranks do not find each other.
        """
        return cls.from_launch(
            detect_launch(os.environ),
            backend,
            timeout_s=timeout_s,
            silence_s=silence_s,
            device=device,
        )

    @classmethod
    def from_launch(
        cls,
        info: LaunchInfo,
        backend: str = "auto",
        *,
        timeout_s: float = 300.0,
        silence_s: float = 15.0,
        device: torch.device | str | None = None,
    ) -> Self:
        """Collective. Join the ranks of a launch. See `from_env`."""
        backend = _checked_backend(backend, info)
        wanted = None if device is None else torch.device(device)
        if backend == "mpi" and info.launcher == "single":
            info = replace(info, world_size=0)  # an unknown mpirun: only MPI can tell
        if info.world_size == 1:
            return cls.single(wanted or _single_device(backend))
        return cls(**join(info, backend, timeout_s=timeout_s, silence_s=silence_s, device=wanted))

    @classmethod
    def single(cls, device: torch.device | str = "cpu") -> Self:
        """Return a world of one rank, which needs no library and no network."""
        control = Control(0)
        device = torch.device(device)
        return cls(LocalTransport(control, device=device), control, device=device)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def split(self, color: int) -> "World":
        """Collective. Return the world of the ranks with equal colour, ordered by rank.

        It shares the control channel: errors name ranks of the whole world. Close it before this
        one, or not at all.
        """
        return World(
            self.transport.split(color),
            self.control,
            local_rank=self.local_rank,
            device=self.device,
            parent=self,
        )

    def abort(self, error: BaseException | str) -> None:
        """Tell all other ranks that this one fails, so that their next wait raises."""
        self.control.abort(error)

    def raise_everywhere(self, error: Exception | None, doing: str) -> None:
        """Collective. Raise on every rank if any rank passes an error.

        The failing rank raises its own error. The others raise an error of the same class of
        this package, which names the rank; RankError if it is of no such class.

        Args:
            error: This rank's error, or None.
            doing: What was done, for messages: "loading the shard".
        """
        found = None if error is None else (type(error).__name__, str(error), _is_ours(error))
        reports = self.transport.all_gather_object(found)
        failures = [(self.transport.world_ranks[r], *f) for r, f in enumerate(reports) if f]
        if not failures:
            return
        # Every rank knows by now; leaving the world with this error need not tell them again.
        agreed = error or _foreign_error(failures, doing)
        self._agreed = agreed
        if self._parent is not None:
            self._parent._agreed = agreed
        raise agreed

    @contextmanager
    def everywhere(self, doing: str) -> Iterator[None]:
        """Collective. Run a body that may fail on one rank alone, then `raise_everywhere`.

        Args:
            doing: What the body does, for messages: "loading the shard".

        Example:
            >>> world = World.single()
            >>> with world.everywhere("loading the shard"):
            ...     pass
        """
        self.control.progress(doing)
        error: Exception | None = None
        try:
            yield
        except RankError:
            raise  # the world has failed already: gathering would only raise it again
        except Exception as caught:
            error = caught
        self.raise_everywhere(error, doing)

    def close(self) -> None:
        """Say goodbye to the other ranks and release everything; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._parent is None:
            atexit.unregister(self._at_exit)
            self.control.close()
        self.transport.close()
        if self._owns_torch and dist.is_initialized():
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        clean = error is None or (isinstance(error, SystemExit) and not error.code)
        if error is not None and not clean and error is not self._agreed:
            self.abort(error)
        self.close()

    def __repr__(self) -> str:
        return (
            f"World(rank={self.rank}, world_size={self.world_size}, "
            f"backend={self.transport.backend!r}, device={str(self.device)!r})"
        )


@functools.cache  # a process is started by one launcher, and can join its ranks once
def world_of_process() -> World:
    """Collective the first time. Return `World.from_env()`, made once in a process."""
    return World.from_env()


def _end_at_exit(world: World) -> None:
    """Close a world that was never closed; if the process ends by an error, tell it."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and error is not world._agreed:
        world.abort(error)
    with contextlib.suppress(Exception):
        world.close()


def _is_ours(error: Exception) -> bool:
    return isinstance(error, GnnDistError) and hasattr(errors, type(error).__name__)


def _foreign_error(failures: list[tuple[int, str, str, bool]], doing: str) -> GnnDistError:
    """Return the error of a rank that had none itself."""
    rank, name, _, ours = failures[0]
    lines = [
        f"rank {r}: {text}" if ours else f"rank {r} failed while {doing}: {kind}: {text}"
        for r, kind, text, ours in failures[:8]
    ]
    if len(failures) > 8:
        lines.append(f"and {len(failures) - 8} more ranks")
    message = "\n".join(lines)
    kind = getattr(errors, name) if ours else RankError
    if issubclass(kind, RankError):
        return RankError(message, rank)
    made: GnnDistError = kind(message)
    return made


def _checked_backend(backend: str, info: LaunchInfo) -> str:
    if backend not in BACKENDS:
        raise ConfigError(
            f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}: "
            f"{nearest(backend, list(BACKENDS))}"
        )
    if backend == "mpi" and info.launcher in ("torchrun", "local") and info.world_size > 1:
        raise ConfigError(
            f"backend 'mpi' needs ranks that mpirun or srun started, not {info.launcher}: start "
            f"with `mpirun -n {info.world_size}`, or use --backend gloo"
        )
    if backend == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise ConfigError(
            "backend 'nccl' needs a CUDA device and a torch built for it: use --backend gloo"
        )
    if backend == "auto" and info.is_mpi and importlib.util.find_spec("mpi4py") is not None:
        return "mpi"
    return backend


def _single_device(backend: str) -> torch.device:
    on_gpu = backend in ("auto", "nccl") and torch.cuda.is_available()
    return torch.device("cuda", 0) if on_gpu else torch.device("cpu")
