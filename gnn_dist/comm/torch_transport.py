"""Transports over torch.distributed: gloo for CPU tensors, NCCL for CUDA tensors.

They call the process group's own methods, so that sub-groups need no global registry: their
names and stores come from the split that makes them.
"""

import contextlib
import itertools
import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

# torch.distributed offers these names but does not declare them as exported.
from torch._C._distributed_c10d import PrefixStore, Store

from gnn_dist.comm.base import BaseHandle, BaseTransport
from gnn_dist.comm.control import Control
from gnn_dist.comm.local_transport import LocalTransport
from gnn_dist.comm.messages import ByteExchange, Reduction
from gnn_dist.comm.transport import MAX_CHANNEL, Handle

__all__ = ["GlooTransport", "NcclTransport", "TorchTransport"]

POISON_TAG = MAX_CHANNEL + 100
# The library's own limit comes later than ours, so that our message is the one seen.
MARGIN_S = 30.0
REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class TorchHandle(BaseHandle):
    """Works of torch.distributed that complete together."""

    _works: list[tuple[dist.Work, list[int]]]

    def of(self, works: list[tuple[dist.Work, list[int]]]) -> Self:
        """Set the works, each with the ranks that it waits for, and return self."""
        self._works = works
        return self

    def _pending_peers(self) -> Sequence[int]:
        return sorted({peer for _, peers in self._works for peer in peers})


class GlooHandle(TorchHandle):
    """Works of gloo, whose `wait` blocks the host."""

    _waiter: threading.Thread | None = None
    _cause: RuntimeError | None = None

    def _wait(self, deadline: float) -> None:
        if self._waiter is None:
            self._wait_for_works(deadline)
            return
        self._waiter.join(max(0.0, deadline - time.monotonic()))
        if self._waiter.is_alive():
            raise TimeoutError("the operation is still running")
        if self._cause is not None:
            raise self._cause

    def _test(self) -> bool:
        # gloo's sends and receives learn that they are complete only inside `wait`, so the first
        # question starts a thread that waits.
        if self._waiter is None:
            deadline = time.monotonic() + self._transport.timeout_s
            self._waiter = threading.Thread(
                target=self._wait_aside, args=(deadline,), name="gnn-dist-wait", daemon=True
            )
            self._waiter.start()
            self._waiter.join(0.0005)
        if self._cause is not None:
            raise self._cause
        return not self._waiter.is_alive()

    def _wait_aside(self, deadline: float) -> None:
        try:
            self._wait_for_works(deadline)
        except RuntimeError as error:
            self._cause = error

    def _wait_for_works(self, deadline: float) -> None:
        while self._works:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            self._works[0][0].wait(timedelta(milliseconds=left_ms))
            del self._works[0]
        self._seen_complete()


class NcclHandle(TorchHandle):
    """Works of NCCL. A time-out would make `wait` block the host, so it is left to NCCL's own."""

    def _wait(self, deadline: float) -> None:
        while self._works:
            self._works[0][0].wait()
            del self._works[0]

    def _test(self) -> bool:
        return all(work.is_completed() for work, _ in self._works)


class TorchTransport(BaseTransport):
    """What the two backends of torch.distributed share.

    Args:
        group: A process group, or a backend object with the same methods.
        store: Where sub-groups find each other; names below `name` are theirs.
        control: The control channel of the world.
        world_ranks: For each rank of the group its rank in the world.
        name: The group's name, the same on all its ranks and unique in the store.
        timeout_s: How long a wait may take.
    """

    name_of_backend: str
    handle_type: type[TorchHandle]

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - ProcessGroup or Backend, which share no base class
        store: Store,
        *,
        control: Control,
        world_ranks: tuple[int, ...],
        name: str = "world",
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(
            self.name_of_backend,
            group.rank(),
            world_ranks=world_ranks,
            control=control,
            timeout_s=timeout_s,
        )
        self._group = group
        self._store = store
        self._name = name
        self._forget_callback = control.on_failure(self._wake)

    def close(self) -> None:
        """Release the group; safe to call twice."""
        self._forget_callback()
        super().close()
        self._group = None

    def _subgroup(self, members: list[int], name: str) -> BaseTransport:
        world_ranks = tuple(self.world_ranks[r] for r in members)
        if len(members) == 1:
            return LocalTransport(self.control, world_rank=world_ranks[0], device=self.device)
        full_name = f"{self._name}/{name}"
        with self._translated("split"):
            timeout = timedelta(seconds=self.timeout_s + MARGIN_S)
            rank = members.index(self.rank)
            group = self.new_group(full_name, self._store, rank, len(members), timeout)
        child = type(self)(
            group,
            self._store,
            control=self.control,
            world_ranks=world_ranks,
            name=full_name,
            timeout_s=self.timeout_s,
        )
        child.max_message_bytes = self.max_message_bytes
        child.barrier()  # a rank that is done early must not leave while others still connect
        return child

    def _reduce(self, reduction: Reduction) -> Handle:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(REDUCE_OPS[reduction.op])
        work = self._group.allreduce([reduction.wire], options)
        keep = (reduction.wire,)
        handle = self.handle_type(self, "all_reduce", keep=keep, finish=reduction.finish)
        return handle.of([(work, self._others())])

    def _broadcast(self, data: Tensor, root: int) -> Handle:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        work = self._group.broadcast([data], options)
        peers = self._others() if self.rank == root else [root]
        return self.handle_type(self, "broadcast", keep=(data,)).of([(work, peers)])

    def _others(self) -> list[int]:
        return [r for r in range(self.world_size) if r != self.rank]

    @staticmethod
    @abstractmethod
    def new_group(name: str, store: Store, rank: int, world_size: int, timeout: timedelta) -> Any:  # noqa: ANN401
        """Collective. Return a new backend object, not registered anywhere."""

    @abstractmethod
    def _wake(self) -> None:
        """Make blocked operations of this group fail, on this rank."""


class GlooTransport(TorchTransport):
    """CPU tensors over TCP. A channel is a tag."""

    name_of_backend = "gloo"
    handle_type = GlooHandle
    reduce_as = {  # noqa: RUF012 - never changed
        torch.int16: torch.int32,
        torch.float8_e4m3fn: torch.float32,
        torch.float8_e5m2: torch.float32,
    }

    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        # Receives first: gloo's ready-to-receive note would queue behind our own payload.
        works: list[tuple[dist.Work, list[int]]] = []
        for source, data in exchange.receives(self.max_message_bytes):
            works.append((self._group.recv([data], source, channel), [source]))
        for destination, data in exchange.sends(self.max_message_bytes):
            works.append((self._group.send([data], destination, channel), [destination]))
        exchange.copy_own()
        keep = (exchange.send, exchange.recv)
        return GlooHandle(self, f"exchange on channel {channel}", keep=keep).of(works)

    @staticmethod
    def new_group(
        name: str, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> "dist.ProcessGroupGloo":
        """Collective. Return a new backend object, not registered anywhere."""
        return dist.ProcessGroupGloo(PrefixStore(name, store), rank, world_size, timeout)

    def _wake(self) -> None:
        # Nothing in torch interrupts a blocked gloo wait: `abort` does not. But a receive that
        # times out closes all connections of its group, and with them fails every wait. One that
        # fails at once (its peer is dead) does not, hence the loop.
        group = self._group
        for peer in self._others():
            try:
                group.recv([torch.empty(1)], peer, POISON_TAG).wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "timeout" in str(error).lower() or "timed out" in str(error).lower():
                    return


class NcclTransport(TorchTransport):
    """CUDA tensors. Waiting orders the current stream after the operation; the host runs on."""

    name_of_backend = "nccl"
    handle_type = NcclHandle

    @property
    def device(self) -> torch.device:
        """The current CUDA device."""
        return torch.device("cuda", torch.cuda.current_device())

    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        # One grouped call of sends and receives; it has no size limit and no tags.
        ends = [(ptr[0], ptr[-1]) for ptr in (exchange.recv_ptr, exchange.send_ptr)]
        recv, send = (
            data[a:b] for data, (a, b) in zip((exchange.recv, exchange.send), ends, strict=True)
        )
        counts = [
            [b - a for a, b in itertools.pairwise(ptr)]
            for ptr in (exchange.recv_ptr, exchange.send_ptr)
        ]
        work = self._group.alltoall_base(recv, send, *counts, dist.AllToAllOptions())
        keep = (exchange.send, exchange.recv)
        handle = NcclHandle(self, f"exchange on channel {channel}", keep=keep)
        return handle.of([(work, self._others())])

    @staticmethod
    def new_group(
        name: str, store: Store, rank: int, world_size: int, timeout: timedelta
    ) -> "dist.ProcessGroupNCCL":
        """Collective. Return a new backend object, not registered anywhere."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return dist.ProcessGroupNCCL(PrefixStore(name, store), rank, world_size, options)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._group.abort()
