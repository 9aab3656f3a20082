"""When rows are waited for: each schedule as an exchange over a courier."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnn_dist.halo.courier import Courier, Parcel
from gnn_dist.halo.pending import Exchange, Pending
from gnn_dist.halo.policy import (
    Blocking,
    Delayed,
    HaloPolicy,
    Local,
    Overlap,
    Pipelined,
    Remat,
    Ssp,
    Term,
)
from gnn_dist.halo.remat import RematExchange
from gnn_dist.halo.select import Selector
from gnn_dist.halo.stale import HeldExchange, LocalExchange, Timing
from gnn_dist.halo.wire import num_cols

__all__ = ["SCHEDULES", "BlockingExchange", "OverlappedExchange"]


@dataclass
class _Selected:
    """Rows of a part of the route, put where they belong."""

    parcel: Parcel
    scale: float

    def wait(self) -> Tensor:
        rows = self.parcel.wait()
        if self.scale != 1.0:
            rows = rows.mul_(self.scale)
        return self.parcel.route.spread(rows)


@dataclass
class _Arrived:
    rows: Tensor

    def wait(self) -> Tensor:
        return self.rows


class _Waited:
    """What exchanges share of which no row outlives its step."""

    def drain(self) -> None:
        """Do nothing: whoever starts such an exchange waits for it."""


@dataclass(frozen=True)
class OverlappedExchange(_Waited):
    """Waits when the rows are asked for; work done in between hides the transfer."""

    courier: Courier
    selector: Selector

    def start(self, rows: Tensor) -> Pending:
        """Collective. Post receives, then sends."""
        return _Selected(self.courier.post(rows, self.selector.now()), self.selector.scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the codec's state: no row outlives its exchange."""
        return self.courier.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the codec's state."""
        self.courier.load_state_dict(state)


@dataclass(frozen=True)
class BlockingExchange(_Waited):
    """Waits at once; the reference for every other policy."""

    courier: Courier
    selector: Selector

    def start(self, rows: Tensor) -> Pending:
        """Collective. Exchange and wait."""
        return _Arrived(OverlappedExchange(self.courier, self.selector).start(rows).wait())

    def state_dict(self) -> dict[str, Any]:
        """Return the codec's state: no row outlives its exchange."""
        return self.courier.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the codec's state."""
        self.courier.load_state_dict(state)


def _held(courier: Courier, selector: Selector, policy: HaloPolicy) -> Exchange:
    term: Any = policy.schedule
    return HeldExchange(courier, selector, Timing.of(term))


def _in_rounds(courier: Courier, selector: Selector, policy: HaloPolicy) -> Exchange:
    del selector  # of all rows, or the policy would have been refused
    term: Any = policy.schedule

    def on_wire(like: Tensor) -> tuple[int, ...]:
        width, size = num_cols(like), like.element_size()
        if not like.is_floating_point():
            return (width * size,)
        return tuple(policy.row_bytes(width, size, gradients=is_one) for is_one in (False, True))

    return RematExchange(courier, term.buffer, on_wire)


# How each schedule is made of a courier, what selects its rows, and its policy.
SCHEDULES: dict[type[Term], Callable[[Courier, Selector, HaloPolicy], Exchange]] = {
    Blocking: lambda courier, selector, _: BlockingExchange(courier, selector),
    Overlap: lambda courier, selector, _: OverlappedExchange(courier, selector),
    Local: lambda courier, *_: LocalExchange(courier),
    Remat: _in_rounds,
    **dict.fromkeys((Delayed, Pipelined, Ssp), _held),
}
