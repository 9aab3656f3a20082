"""What every transport offers. Code that communicates is written against these protocols."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["DONE", "MAX_CHANNEL", "Handle", "Transport"]

# MPI promises tags up to 32767; the last channels are kept for the transports themselves.
MAX_CHANNEL = 32_000


class Handle(Protocol):
    """An operation on its way. It keeps its buffers alive until it is complete."""

    @property
    def completed_s(self) -> float | None:
        """When it was first seen to be complete, by `time.perf_counter`.

        None before, and where it was complete from the start. How closely an operation is watched
        is the transport's.
        """

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the operation is complete; waiting again returns at once.

        Args:
            timeout_s: Seconds, instead of the transport's default.

        Raises:
            RankError: Another rank failed, ended or is late; the message names it. No further
                operation of this world can succeed.
            CommError: The operation failed and no rank could be blamed.
        """

    def done(self) -> bool:
        """Return whether `wait` would return or raise at once."""


class Transport(Protocol):
    """Moves rows between the ranks of one group.

    Attributes:
        backend: `local`, `gloo`, `nccl` or `mpi`.
        rank: This process's rank in the group.
        world_size: Ranks in the group.
        world_ranks: For each rank of the group its rank in the world that was started.
    """

    backend: str
    rank: int
    world_size: int
    world_ranks: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        """Where tensors that are sent and received lie."""

    def exchange(
        self,
        send: Tensor,
        send_ptr: Sequence[int],
        recv: Tensor,
        recv_ptr: Sequence[int],
        channel: int,
    ) -> Handle:
        """Collective. Start to send rows to, and receive rows from, every rank.

        All exchanges of one channel are started in the same order on all ranks; those of
        different channels are independent of each other (on NCCL, which has no tags, all
        operations are started in the same order on all ranks). They may be waited for in any
        order. Until then `send` must not change and `recv` is undefined.

        Args:
            send: Contiguous (n, ...), of any dtype.
            send_ptr: (world_size + 1,); rows `[send_ptr[q], send_ptr[q + 1])` go to rank q.
            recv: Contiguous (m, ...), of the dtype and trailing shape of `send`; not overlapping
                it.
            recv_ptr: (world_size + 1,); rows `[recv_ptr[q], recv_ptr[q + 1])` come from rank q.
                Each count equals what rank q sends here. Other rows are left as they are.
            channel: 0..MAX_CHANNEL.

        Raises:
            CommError: An argument does not fit; nothing was sent.
            RankError: Another rank has failed.
        """

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle:
        """Collective. Start to combine a tensor over all ranks, in place.

        Args:
            tensor: Contiguous, of equal shape and dtype on all ranks. Booleans combine as "or"
                for sum and max, "and" for min.
            op: `sum`, `max` or `min`.

        Raises:
            CommError: An argument does not fit; nothing was sent.
            RankError: Another rank has failed.
        """

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Collective. Overwrite a contiguous tensor with rank `root`'s, on all ranks."""

    def all_gather_object(self, obj: Any) -> list[Any]:  # noqa: ANN401 - any picklable object
        """Collective. Return every rank's object, by rank. Objects are pickled."""

    def barrier(self) -> None:
        """Collective. Return when all ranks have come here."""

    def split(self, color: int) -> "Transport":
        """Collective. Return the transport of the ranks with equal colour, ordered by rank."""

    def close(self) -> None:
        """Release what the transport holds; safe to call twice. Nothing may be in flight."""


class _Done:
    """The handle of an operation that was complete when it was started."""

    completed_s: float | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        """Return at once."""

    def done(self) -> bool:
        """Return True."""
        return True


DONE: Handle = _Done()
