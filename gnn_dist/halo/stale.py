"""Exchanges that use rows of earlier steps, so that communication is off the critical path.

    delayed:r=2,bins=2,warmup=2
    turn            0     1     2     3     4     5     6       a step in which the exchange runs
    sent           all   all    A     B     A     B     A       the bins of rows, A and B
    used           all   all    -     -     A     B     A       what was sent two turns before
    rows' age       0     0    1 1   2 2   2 3   3 2   2 3      of A and B, at most r + bins - 1

A cache over all rows of the route holds what came last and is what an exchange returns; the first
turns are exact and fill it. Values and gradients are exchanges of their own, each with its cache.

An exchange may run several times in a step: a layer that is called twice, a second backward. Then
what its k-th use in a step sends is used by its k-th use in a later step.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnn_dist.halo.courier import Courier, Parcel
from gnn_dist.halo.route import Route
from gnn_dist.halo.select import Selector
from gnn_dist.halo.stale_terms import Delayed, Held, Pipelined, Ssp
from gnn_dist.ops.rows import gather_rows, new_rows_like

__all__ = ["HeldExchange", "LocalExchange", "Timing"]


@dataclass
class Arrived:
    """Rows that are here."""

    rows: Tensor

    def wait(self) -> Tensor:
        """Return the rows."""
        return self.rows

    def done(self) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True)
class LocalExchange:
    """Sends nothing; halo rows are zeros."""

    courier: Courier

    def start(self, rows: Tensor) -> Arrived:
        """Return zeros for the route's rows."""
        return Arrived(new_rows_like(rows, self.courier.route.num_rows).zero_())

    def drain(self) -> None:
        """Do nothing: no row is on its way."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row is kept."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: no row is kept."""


@dataclass(frozen=True)
class Timing:
    """When rows travel, and when they are used.

    Attributes:
        lag: Turns after which rows are waited for.
        bins: A row travels in every so manieth turn.
        warmup: So many turns at first are exact.
        smooth: What remains of old rows when new ones come, 0 for nothing.
        eager: Rows that arrive before they are due are used at once, rank by rank.
    """

    lag: int
    bins: int
    warmup: int
    smooth: float = 0.0
    eager: bool = False

    @classmethod
    def of(cls, term: Held) -> "Timing":
        """Return what a term of a policy asks for."""
        match term:
            case Delayed():
                return cls(term.r, term.bins, term.warmup)
            case Pipelined():
                return cls(1, 1, term.warmup, smooth=term.smooth)
            case Ssp():
                return cls(term.s, 1, term.warmup, eager=True)
            case _:
                raise TypeError(f"no schedule is known for {term}")


@dataclass
class _Shipment:
    """What was sent in one turn.

    Attributes:
        turn: The turn.
        index: int64 (r,), where its rows belong among those of the route; None: they are all.
        content: The rows (r, ...), on their way or here.
    """

    turn: int
    index: Tensor | None
    content: Parcel | Arrived

    def arrive(self) -> Tensor:
        """Return the rows, waiting for them the first time."""
        rows = self.content.wait()
        self.content = Arrived(rows)
        return rows


@dataclass(frozen=True)
class _Lane:
    """Rows that are waited for together: all of a route, or those from one rank.

    Attributes:
        whole: All of them.
        bins: What chooses among them in one turn after the other, in rotation.
    """

    whole: Route
    bins: tuple[Selector, ...]

    def route(self, turn: int, timing: Timing) -> Route:
        """Return what travels in a turn."""
        return self.whole if turn < timing.warmup else self.bins[turn % len(self.bins)].now()


class HeldExchange:
    """Returns a cache of the rows that came last, while new rows travel.

    Args:
        courier: Carries the rows.
        selector: Chooses those that travel; the others keep their last values.
        timing: When they travel, and when they are used.
    """

    def __init__(self, courier: Courier, selector: Selector, timing: Timing) -> None:
        self.courier, self.selector, self.timing = courier, selector, timing
        self._streams: list[_Stream] = []
        self._tick, self._use = -1, 0  # which use of the exchange in which step comes next

    @cached_property
    def lanes(self) -> tuple[_Lane, ...]:
        """What is waited for together."""
        # Rows are still on their way when their owner has changed them, so copies are sent.
        route = self.courier.route.copying()
        wholes = route.by_distance() if self.timing.eager else (route,)
        return tuple(
            _Lane(whole, tuple(self.selector.of(part) for part in whole.in_bins(self.timing.bins)))
            for whole in wholes
        )

    def start(self, rows: Tensor) -> "_Held":
        """Collective. Send what is to travel in this step; nothing is waited for."""
        tick = self.courier.clock.ticks
        if tick != self._tick:
            self._tick, self._use = tick, 0
        if self._use == len(self._streams):
            self._streams.append(_Stream(self, self._use))
        self._use += 1
        return self._streams[self._use - 1].start(rows)

    def drain(self) -> None:
        """Wait for what is on its way. It is used when it would have been."""
        for stream in self._streams:
            stream.drain()

    def state_dict(self) -> dict[str, Any]:
        """Return caches and what is on its way, which is waited for."""
        streams = [stream.state_dict() for stream in self._streams]
        return {"streams": streams, "codec": self.courier.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that an exchange on the same route, with the same timing, had."""
        self.courier.load_state_dict(state["codec"])
        self._streams = [_Stream(self, use) for use in range(len(state["streams"]))]
        for stream, saved in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(saved)


class _Stream:
    """The first use of an exchange in every step, or the second, ...

    The cache is never changed in place: what has been returned may be kept for a backward.
    """

    def __init__(self, exchange: HeldExchange, use: int) -> None:
        self._exchange, self._use = exchange, use
        self._turn = 0
        self._like = torch.empty(0)  # no rows, of the width and dtype of those exchanged
        self._cache: Tensor | None = None
        self._queues: list[deque[_Shipment]] = [deque() for _ in exchange.lanes]

    def start(self, rows: Tensor) -> "_Held":
        """Collective. Send what is to travel in this turn."""
        self._fit(rows)
        exchange, turn = self._exchange, self._turn
        for lane, queue in zip(exchange.lanes, self._queues, strict=True):
            route = lane.route(turn, exchange.timing)
            parcel = exchange.courier.post(rows, route)
            queue.append(_Shipment(turn, route.recv_index, parcel))
        self._turn += 1
        return _Held(self, turn)

    def rows_at(self, turn: int) -> Tensor:
        """Return the cache of a turn, waiting for what is due."""
        lag = 0 if turn < self._exchange.timing.warmup else self._exchange.timing.lag
        arrived = []
        for queue in self._queues:
            while queue and (queue[0].turn + lag <= turn or self._is_early(queue[0])):
                arrived.append(queue.popleft())
        smooth = self._exchange.timing.smooth if turn >= self._exchange.timing.warmup else 0.0
        self._cache = self._renewed(arrived, smooth)
        return self._cache

    def drain(self) -> None:
        """Wait for what is on its way."""
        for queue in self._queues:
            for shipment in queue:
                shipment.arrive()

    def state_dict(self) -> dict[str, Any]:
        """Return the cache and the queues."""
        queues = [[(s.turn, s.index, s.arrive()) for s in queue] for queue in self._queues]
        return {"turn": self._turn, "cache": self._cache, "like": self._like, "queues": queues}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a cache and queues."""
        device = self._exchange.courier.transport.device

        def here(tensor: Tensor | None) -> Any:
            return None if tensor is None else tensor.to(device)

        self._turn = state["turn"]
        self._cache, self._like = here(state["cache"]), here(state["like"])
        self._queues = [
            deque(_Shipment(turn, here(index), Arrived(here(rows))) for turn, index, rows in queue)
            for queue in state["queues"]
        ]

    def _fit(self, rows: Tensor) -> None:
        """Begin anew where rows have another width or dtype; they have on every rank."""
        like = self._like
        if self._turn and (like.shape[1:], like.dtype) != (rows.shape[1:], rows.dtype):
            self.drain()
            self._turn, self._cache = 0, None
            for queue in self._queues:
                queue.clear()
        self._like = rows.new_empty((0, *rows.shape[1:]))

    def _is_early(self, shipment: _Shipment) -> bool:
        return self._exchange.timing.eager and shipment.content.done()

    def _renewed(self, arrived: list[_Shipment], smooth: float) -> Tensor:
        """Return the cache with rows that have arrived, and note how much they change."""
        cache, is_copy, norms = self._cache, False, []
        for shipment in arrived:
            rows, index = shipment.arrive(), shipment.index
            if cache is not None:
                old = cache if index is None else gather_rows(cache, index)
                rows = torch.lerp(rows, old, smooth) if smooth else rows
                norms.append((_norm(rows - old), _norm(old)))
            if index is None:
                cache, is_copy = rows, True
                continue
            copy = cache if is_copy and cache is not None else self._copy(cache, rows)
            cache, is_copy = copy.index_copy_(0, index, rows), True
        if norms:
            changed, before = (_norm(torch.stack(each)) for each in zip(*norms, strict=True))
            place = self._exchange.courier.place
            key = (place.direction, place.layer, self._use)
            self._exchange.courier.meter.change[key] = changed / before
        return cache if cache is not None else self._copy(None, self._like)

    def _copy(self, cache: Tensor | None, like: Tensor) -> Tensor:
        """Return a copy of the cache, or zeros if there is none yet."""
        copy = new_rows_like(like, self._exchange.courier.route.num_rows)
        return copy.zero_() if cache is None else copy.copy_(cache)


@dataclass
class _Held:
    """The cache of one turn."""

    stream: _Stream
    turn: int
    rows: Tensor | None = None

    def wait(self) -> Tensor:
        """Return all rows of the route (num_rows, ...), not to be changed in place."""
        if self.rows is None:
            self.rows = self.stream.rows_at(self.turn)
        return self.rows


def _norm(rows: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(
        rows, dtype=torch.promote_types(rows.dtype, torch.float32)
    )
    return norm
