"""Ranks that are threads of one process, for checks that need several ranks and no launcher.

    run_virtual(fn, 2)     thread 0: fn(world) <--> board <--> thread 1: fn(world)

Autograd on a CPU runs a backward in the thread that calls it, and modes of PyTorch belong to a
thread, so a rank's forward and backward stay apart from those of the others.

The board sees what every rank waits for. When all of them wait for what nobody has sent, none can
ever go on: they fail at once with the name of what each waits for, without a time-out.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gnn_dist.comm.base import BaseHandle, BaseTransport
from gnn_dist.comm.control import Control
from gnn_dist.comm.messages import ByteExchange, Reduction, as_bytes
from gnn_dist.comm.transport import Handle
from gnn_dist.comm.world import World
from gnn_dist.errors import CommError, RankError

__all__ = ["VirtualTransport", "run_virtual"]

TIMEOUT_S = 60.0
END_S = 5.0  # how long ranks that were told of a failure may take to end
REDUCE, BROADCAST = -1, -2  # channels of their own

# Group, channel, sender, receiver (ranks of the group), and which message between them it is.
Key = tuple[str, int, int, int, int]


class _Waiting(NamedTuple):
    """What a rank waits for: in words, and whether it is there."""

    doing: str
    ready: Callable[[], bool]


class _Board:
    """Messages on their way, and who waits; one for all ranks of a world.

    Args:
        num_ranks: How many ranks there are.
    """

    def __init__(self, num_ranks: int) -> None:
        self.changed = threading.Condition()
        self.messages: dict[Key, Tensor] = {}
        self.controls = [_ThreadControl(rank, self) for rank in range(num_ranks)]
        self._active = set(range(num_ranks))
        self._waiting: dict[int, _Waiting] = {}

    def put(self, key: Key, data: Tensor) -> None:
        """Leave a message for its receiver."""
        with self.changed:
            self.messages[key] = data
            self.changed.notify_all()

    def wait(self, rank: int, waiting: _Waiting, deadline: float) -> None:
        """Block a rank until what it waits for is there.

        Raises:
            TimeoutError: It has not come.
            RuntimeError: A rank has failed.
        """
        failed = self.controls[rank].failed
        with self.changed:
            self._waiting[rank] = waiting
            try:
                self._check_progress()
                come = self.changed.wait_for(
                    lambda: waiting.ready() or failed.is_set(),
                    max(0.0, deadline - time.monotonic()),
                )
            finally:
                del self._waiting[rank]
        if failed.is_set():
            raise RuntimeError("another rank failed")
        if not come:
            raise TimeoutError("the other ranks have not sent theirs")

    def waits(self, rank: int) -> bool:
        """Return whether a rank waits for others."""
        with self.changed:
            return rank in self._waiting

    def end(self, rank: int) -> None:
        """Note that a rank has ended."""
        with self.changed:
            self._active.discard(rank)
            self._check_progress()

    def fail(self, rank: int, text: str) -> None:
        """Tell all ranks of a failure; the first one counts."""
        with self.changed:
            for control in self.controls:
                control.hear(rank, text)
            self.changed.notify_all()

    def _check_progress(self) -> None:
        """Fail all ranks if none of them can ever go on."""
        waiting = {rank: self._waiting.get(rank) for rank in sorted(self._active)}
        if not waiting or any(w is None or w.ready() for w in waiting.values()):
            return
        each = [f"rank {rank} waits in {w.doing}" for rank, w in waiting.items() if w is not None]
        ended = [f"rank {c.rank} has ended" for c in self.controls if c.rank not in self._active]
        self.fail(min(waiting), f"no rank can go on: {', '.join(each + ended)}")


class _ThreadControl(Control):
    """The control channel of a rank that is a thread."""

    def __init__(self, rank: int, board: _Board) -> None:
        super().__init__(rank)
        self._board = board

    def abort(self, error: BaseException | str) -> None:
        """Tell all ranks that this one fails."""
        super().abort(error)
        if self.failure is not None:
            self._board.fail(self.failure.rank, str(self.failure))

    def hear(self, rank: int, text: str) -> None:
        """Take note of a failure."""
        self._fail(rank, text)


class _Slot(NamedTuple):
    """A message that is awaited, and where its bytes go."""

    peer: int
    key: Key
    into: Tensor


class VirtualHandle(BaseHandle):
    """Messages that are awaited together."""

    _board: _Board
    _slots: list[_Slot]

    def of(self, board: _Board, slots: list[_Slot]) -> Self:
        """Set what is awaited, and return self."""
        self._board, self._slots = board, slots
        return self

    def _wait(self, deadline: float) -> None:
        rank = self._transport.control.rank
        self._board.wait(rank, _Waiting(self.doing, self._here), deadline)
        self._take()

    def _test(self) -> bool:
        with self._board.changed:
            here = self._here()
        if here:
            self._take()
        return here

    def _here(self) -> bool:
        return all(slot.key in self._board.messages for slot in self._slots)

    def _take(self) -> None:
        with self._board.changed:
            for peer, key, into in self._slots:
                if len(self._board.messages[key]) != len(into):
                    raise RuntimeError(
                        f"rank {peer} sent {len(self._board.messages[key])} bytes, not {len(into)}"
                    )
            found = [(into, self._board.messages.pop(key)) for _, key, into in self._slots]
        for into, data in found:
            into.copy_(data)
        self._slots = []

    def _pending_peers(self) -> Sequence[int]:
        return sorted({slot.peer for slot in self._slots if slot.key not in self._board.messages})


class VirtualTransport(BaseTransport):
    """One of several ranks that are threads of this process; see `run_virtual`.

    Args:
        board: What all ranks share.
        rank: The rank in the group.
        world_ranks: For each rank of the group its rank in the world.
        name: The group's name.
        timeout_s: How long a wait may take.
    """

    reduce_as = {  # noqa: RUF012 - never changed
        torch.float8_e4m3fn: torch.float32,
        torch.float8_e5m2: torch.float32,
    }

    def __init__(
        self,
        board: _Board,
        rank: int,
        *,
        world_ranks: tuple[int, ...],
        name: str = "world",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(
            "threads",
            rank,
            world_ranks=world_ranks,
            control=board.controls[world_ranks[rank]],
            timeout_s=timeout_s,
        )
        self._board, self._name = board, name
        self._sent: Counter[tuple[int, int]] = Counter()
        self._awaited: Counter[tuple[int, int]] = Counter()

    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        for peer, data in exchange.sends(self.max_message_bytes):
            self._send(peer, data, channel)
        exchange.copy_own()
        receives = exchange.receives(self.max_message_bytes)
        slots = [self._slot(peer, into, channel) for peer, into in receives]
        handle = VirtualHandle(self, f"exchange on channel {channel}", keep=())
        return handle.of(self._board, slots)

    def _reduce(self, reduction: Reduction) -> Handle:
        wire, others = reduction.wire, self._others()
        parts = {self.rank: wire.clone(), **{peer: torch.empty_like(wire) for peer in others}}
        for peer in others:
            self._send(peer, as_bytes(wire), REDUCE)
        slots = [self._slot(peer, as_bytes(parts[peer]), REDUCE) for peer in others]

        def finish() -> None:
            # In the order of ranks, so that all of them get the same bits.
            stacked = torch.stack([parts[rank] for rank in range(self.world_size)])
            if reduction.op == "sum":
                wire.copy_(stacked.sum(0, dtype=wire.dtype))
            else:
                wire.copy_(stacked.amax(0) if reduction.op == "max" else stacked.amin(0))
            reduction.finish()

        handle = VirtualHandle(self, "all_reduce", keep=(), finish=finish)
        return handle.of(self._board, slots)

    def _broadcast(self, data: Tensor, root: int) -> Handle:
        slots = []
        if self.rank == root:
            for peer in self._others():
                self._send(peer, data, BROADCAST)
        else:
            slots.append(self._slot(root, data, BROADCAST))
        return VirtualHandle(self, "broadcast", keep=()).of(self._board, slots)

    def _subgroup(self, members: list[int], name: str) -> "VirtualTransport":
        child = VirtualTransport(
            self._board,
            members.index(self.rank),
            world_ranks=tuple(self.world_ranks[r] for r in members),
            name=f"{self._name}/{name}",
            timeout_s=self.timeout_s,
        )
        child.max_message_bytes = self.max_message_bytes
        return child

    def _send(self, peer: int, data: Tensor, channel: int) -> None:
        number = self._sent[channel, peer]
        self._sent[channel, peer] += 1
        # A copy: the sender may be done, and change its rows, before the receiver looks.
        self._board.put((self._name, channel, self.rank, peer, number), data.clone())

    def _slot(self, peer: int, into: Tensor, channel: int) -> _Slot:
        number = self._awaited[channel, peer]
        self._awaited[channel, peer] += 1
        return _Slot(peer, (self._name, channel, peer, self.rank, number), into)

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]


class _Run:
    """The threads of one `run_virtual`."""

    def __init__(self, call: Callable[[World], Any], num_ranks: int, timeout_s: float) -> None:
        self._call, self._timeout_s = call, timeout_s
        self._board = _Board(num_ranks)
        self._ranks = tuple(range(num_ranks))
        self._results: list[Any] = [None] * num_ranks
        self._errors: list[BaseException] = []  # in the order in which they were raised
        self._with_gradient = torch.is_grad_enabled()  # which a new thread does not inherit
        self._threads = [
            threading.Thread(
                target=self._rank, args=(rank,), name=f"gnn-dist-rank-{rank}", daemon=True
            )
            for rank in self._ranks
        ]

    def results(self) -> list[Any]:
        """Run all ranks; return their results or raise the first cause."""
        for thread in self._threads:
            thread.start()
        try:
            late = self._join(self._timeout_s)
        except BaseException as error:  # such as the user's interrupt
            self._board.fail(-1, f"interrupted: {type(error).__name__}")
            raise
        if late:
            slow = next((rank for rank in late if not self._board.waits(rank)), late[0])
            text = f"rank {slow} still ran after {self._timeout_s:.1f} s"
            self._board.fail(slow, text)
            self._join(END_S)
            raise CommError(text)
        causes = [error for error in self._errors if not isinstance(error, RankError)]
        for cause in [*causes, *self._errors]:
            raise cause
        return self._results

    def _join(self, limit_s: float) -> list[int]:
        """Wait for the threads; return the ranks that still run."""
        deadline = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [rank for rank in self._ranks if self._threads[rank].is_alive()]

    def _rank(self, rank: int) -> None:
        transport = VirtualTransport(
            # Who is late is found by whoever sees all ranks.
            self._board,
            rank,
            world_ranks=self._ranks,
            timeout_s=self._timeout_s + END_S,
        )
        try:
            with (
                torch.set_grad_enabled(self._with_gradient),
                World(transport, transport.control, local_rank=rank) as world,
            ):
                self._results[rank] = self._call(world)
        except BaseException as error:
            error.add_note(f"on virtual rank {rank} of {len(self._ranks)}")
            self._errors.append(error)
        finally:
            self._board.end(rank)


def run_virtual(
    fn: Callable[..., Any],
    num_ranks: int,
    *args: Any,  # noqa: ANN401 - passed on to fn
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """Run `fn(world, *args)` on ranks that are threads, and return the results by rank.

    Nothing is pickled: arguments and results are the objects themselves. Ranks share whatever the
    process has, such as the generators of random numbers. Python 3.11 has one parser that all of
    them share: once in some hundred `load_shard` by two ranks at a time it raises SystemError.

    Args:
        fn: What every rank does.
        num_ranks: How many ranks.
        *args: The same for every rank.
        timeout_s: How long the ranks may take, and any wait among them. A rank that computes for
            longer is left behind: a thread cannot be ended from outside.

    Raises:
        CommError: A rank was too late; RankError: no rank could go on, as they wait for each other.
        Exception: What a rank raised, of several the first that is not about another rank.

    Example:
        >>> def total(world, value):
        ...     tensor = torch.tensor([value * world.rank])
        ...     world.transport.all_reduce(tensor).wait()
        ...     return int(tensor)
        >>> run_virtual(total, 3, 5)
        [15, 15, 15]
    """
    return _Run(lambda world: fn(world, *args), num_ranks, timeout_s).results()
