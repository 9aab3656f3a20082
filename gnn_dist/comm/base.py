"""What all transports share: checks before anything is sent, splitting, and object gathering."""

import contextlib
import itertools
import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.control import Control
from gnn_dist.comm.messages import ByteExchange, Reduction, as_bytes
from gnn_dist.comm.transport import DONE, MAX_CHANNEL, Handle
from gnn_dist.errors import CommError

__all__ = ["BaseHandle", "BaseTransport"]

OPS = ("sum", "max", "min")
OBJECT_CHANNEL = MAX_CHANNEL + 1
MAX_MESSAGE_BYTES = 1 << 30


class BaseHandle(ABC):
    """An operation in flight: waits once, and tells the transport when it is complete.

    Args:
        transport: Where it was started.
        doing: What it is, for messages.
        keep: Buffers that must outlive it.
        finish: Called once when it is complete.
    """

    def __init__(
        self,
        transport: "BaseTransport",
        doing: str,
        *,
        keep: tuple[Tensor, ...],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._transport = transport
        self.doing = doing
        self._keep = keep
        self._finish = finish
        self._complete = False
        self.completed_s: float | None = None
        transport.in_flight.add(self)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the operation is complete. See `Handle.wait`."""
        if self._complete:
            return
        control = self._transport.control
        control.check()
        limit_s = self._transport.timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        with control.waiting(self.doing):
            try:
                self._wait(started + limit_s)
            except (TimeoutError, RuntimeError) as cause:
                waited_s = time.monotonic() - started
                peers = [self._transport.world_ranks[p] for p in self._pending_peers()]
                gave_up = waited_s if waited_s >= limit_s else None
                error = control.explain(cause, self.doing, peers=peers, waited_s=gave_up)
                raise error from cause
        self._completed()

    def done(self) -> bool:
        """Return whether `wait` would return or raise at once."""
        if self._complete or self._transport.control.failed.is_set():
            return True
        try:
            if self._test():
                self._completed()
        except RuntimeError:
            return True
        return self._complete

    def _completed(self) -> None:
        if not self._complete:
            self._complete = True
            self._seen_complete()
            self._transport.in_flight.discard(self)
            if self._finish is not None:
                self._finish()
            self._keep = ()

    def _seen_complete(self) -> None:
        if self.completed_s is None:
            self.completed_s = time.perf_counter()

    @abstractmethod
    def _wait(self, deadline: float) -> None:
        """Block until complete.

        Raises:
            TimeoutError: `deadline` (of `time.monotonic`) has passed.
            RuntimeError: The library failed.
        """

    @abstractmethod
    def _test(self) -> bool:
        """Return whether it is complete, without blocking.

        Raises:
            RuntimeError: The library failed; `_wait` will raise the same.
        """

    @abstractmethod
    def _pending_peers(self) -> Sequence[int]:
        """Return the ranks of the group that it still waits for."""


class BaseTransport(ABC):
    """A group of ranks; subclasses move the bytes. See `Transport` for the contract.

    Args:
        backend: `local`, `gloo`, `nccl` or `mpi`.
        rank: This process's rank in the group.
        world_ranks: For each rank of the group its rank in the world.
        control: The control channel of the world.
        timeout_s: How long a wait may take.
        max_message_bytes: Larger messages are split.
    """

    # Reduced as another dtype, because the library lacks it or because sums would lose digits.
    reduce_as: dict[torch.dtype, torch.dtype] = {}  # noqa: RUF012 - never changed

    def __init__(
        self,
        backend: str,
        rank: int,
        *,
        world_ranks: tuple[int, ...],
        control: Control,
        timeout_s: float = 300.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.backend = backend
        self.rank = rank
        self.world_size = len(world_ranks)
        self.world_ranks = world_ranks
        self.control = control
        self.timeout_s = timeout_s
        self.max_message_bytes = max_message_bytes
        self.in_flight: set[BaseHandle] = set()
        self._num_splits = itertools.count()

    def exchange(
        self,
        send: Tensor,
        send_ptr: Sequence[int],
        recv: Tensor,
        recv_ptr: Sequence[int],
        channel: int,
    ) -> Handle:
        """Collective. Start to send rows to, and receive rows from, every rank."""
        if not 0 <= channel <= MAX_CHANNEL:
            raise CommError(f"channel must lie in 0..{MAX_CHANNEL}, got {channel}")
        return self._exchange(send, send_ptr, recv, recv_ptr, channel)

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> Handle:
        """Collective. Start to combine a tensor over all ranks, in place."""
        if op not in OPS:
            raise CommError(f"op must be one of {', '.join(OPS)}, got {op!r}")
        self._check_tensor("tensor", tensor)
        self.control.check()
        if tensor.numel() == 0 or self.world_size == 1:
            return DONE
        with self._translated("all_reduce"):
            return self._reduce(self._reduction(tensor.detach(), op))

    def broadcast(self, tensor: Tensor, root: int = 0) -> None:
        """Collective. Overwrite a tensor with rank `root`'s, on all ranks."""
        if not 0 <= root < self.world_size:
            raise CommError(f"root must lie in 0..{self.world_size - 1}, got {root}")
        self._check_tensor("tensor", tensor)
        self.control.check()
        data = as_bytes(tensor)
        with self._translated("broadcast"):
            for start in range(0, len(data) if self.world_size > 1 else 0, self.max_message_bytes):
                self._broadcast(data[start : start + self.max_message_bytes], root).wait()

    def all_gather_object(self, obj: Any) -> list[Any]:  # noqa: ANN401 - any picklable object
        """Collective. Return every rank's object, by rank. Objects are pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(data)
        sizes = sizes.to(self.device)
        self.all_reduce(sizes).wait()
        recv_ptr = [0, *itertools.accumulate(sizes.tolist())]
        # The same bytes go to every rank, so all send offsets overlap: send one copy a rank.
        everywhere = data.to(self.device).repeat(self.world_size)
        send_ptr = [len(data) * r for r in range(self.world_size + 1)]
        gathered = torch.empty(recv_ptr[-1], dtype=torch.uint8, device=self.device)
        self._exchange(everywhere, send_ptr, gathered, recv_ptr, OBJECT_CHANNEL).wait()
        raw = gathered.cpu().numpy().tobytes()
        return [pickle.loads(raw[a:b]) for a, b in itertools.pairwise(recv_ptr)]

    def barrier(self) -> None:
        """Collective. Return when all ranks have come here."""
        arrived = torch.ones(1, dtype=torch.int32, device=self.device)
        self.all_reduce(arrived).wait()
        arrived.cpu()  # on a GPU, waiting alone only orders the stream

    def split(self, color: int) -> "BaseTransport":
        """Collective. Return the transport of the ranks with equal colour, ordered by rank."""
        colors = self.all_gather_object(int(color))
        members = [r for r, other in enumerate(colors) if other == color]
        return self._subgroup(members, f"{next(self._num_splits)}.{color}")

    def close(self) -> None:
        """Release what the transport holds; safe to call twice."""
        self.in_flight.clear()

    @property
    def device(self) -> torch.device:
        """Where tensors for this transport must lie."""
        return torch.device("cpu")

    @abstractmethod
    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        """Post an exchange's receives, then its sends."""

    @abstractmethod
    def _reduce(self, reduction: Reduction) -> Handle:
        """Start an all-reduce."""

    @abstractmethod
    def _broadcast(self, data: Tensor, root: int) -> Handle:
        """Start a broadcast of flat uint8 data."""

    @abstractmethod
    def _subgroup(self, members: list[int], name: str) -> "BaseTransport":
        """Return the transport of some ranks of this group, this one among them."""

    def _exchange(
        self,
        send: Tensor,
        send_ptr: Sequence[int],
        recv: Tensor,
        recv_ptr: Sequence[int],
        channel: int,
    ) -> Handle:
        exchange = self._checked(send, send_ptr, recv, recv_ptr)
        self.control.check()
        with self._translated(f"exchange on channel {channel}"):
            if self.world_size == 1:
                exchange.copy_own()
                return DONE
            return self._start(exchange, channel)

    def _checked(
        self, send: Tensor, send_ptr: Sequence[int], recv: Tensor, recv_ptr: Sequence[int]
    ) -> ByteExchange:
        self._check_tensor("send", send)
        self._check_tensor("recv", recv)
        if send.ndim == 0 or recv.ndim == 0:
            raise CommError("send and recv must have rows, got a scalar")
        if send.dtype != recv.dtype or send.shape[1:] != recv.shape[1:]:
            raise CommError(
                "send and recv must have equal dtypes and trailing shapes, got "
                f"{send.dtype} {tuple(send.shape)} and {recv.dtype} {tuple(recv.shape)}"
            )
        sends = self._checked_ptr("send_ptr", send_ptr, len(send))
        recvs = self._checked_ptr("recv_ptr", recv_ptr, len(recv))
        own = [ptr[self.rank + 1] - ptr[self.rank] for ptr in (sends, recvs)]
        if own[0] != own[1]:
            raise CommError(
                f"rank {self.rank} sends {own[0]} rows to itself but receives {own[1]}: "
                "the counts must be equal"
            )
        row_bytes = send.element_size() * (send[:1].numel() if len(send) else recv[:1].numel())
        return ByteExchange(
            as_bytes(send),
            [p * row_bytes for p in sends],
            as_bytes(recv),
            [p * row_bytes for p in recvs],
            self.rank,
        )

    def _checked_ptr(self, name: str, ptr: Sequence[int], num_rows: int) -> list[int]:
        values = [int(p) for p in ptr]
        if len(values) != self.world_size + 1:
            raise CommError(
                f"{name} must have world_size + 1 = {self.world_size + 1} entries, "
                f"got {len(values)}"
            )
        if (
            values[0] < 0
            or values[-1] > num_rows
            or any(a > b for a, b in itertools.pairwise(values))
        ):
            raise CommError(f"{name} must rise within 0..{num_rows} (the rows), got {values[:9]}")
        return values

    def _check_tensor(self, name: str, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise CommError(
                f"{name} must be contiguous, got shape {tuple(tensor.shape)} with strides "
                f"{tensor.stride() if tensor.layout == torch.strided else tensor.layout}: "
                "call .contiguous() first"
            )
        if tensor.device.type != self.device.type:
            raise CommError(
                f"{name} must lie on {self.device.type} for backend {self.backend}, got "
                f"{tensor.device}"
            )

    def _reduction(self, tensor: Tensor, op: str) -> Reduction:
        if tensor.dtype == torch.bool:
            return Reduction(tensor.view(torch.uint8), "min" if op == "min" else "max", None)
        if tensor.is_complex():
            if op != "sum":
                raise CommError(f"complex numbers have no {op}: use sum")
            return self._reduction(torch.view_as_real(tensor), op)
        other = self.reduce_as.get(tensor.dtype)
        if other is not None:
            return Reduction(tensor.to(other), op, tensor)
        return Reduction(tensor, op, None)

    def _translated(self, doing: str) -> AbstractContextManager[None]:
        return translated(self.control, doing, self.world_ranks)


@contextlib.contextmanager
def translated(control: Control, doing: str, peers: tuple[int, ...]) -> Iterator[None]:
    """Turn a library's failure to start an operation into the error that names the cause."""
    try:
        yield
    except CommError:
        raise
    except RuntimeError as cause:
        others = [p for p in peers if p != control.rank]
        raise control.explain(cause, f"starting {doing}", peers=others, waited_s=None) from cause
