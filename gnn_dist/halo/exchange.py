"""Moving halo rows: one exchange per layer and direction, behind one seam for every policy.

    start(rows) -> Pending          Pending.wait() -> the rows that arrived

What a policy changes, it changes inside an exchange: layers and `aggregate` never see it.

    Selector    which rows of the route travel in this step     select.py
    Courier     encodes, sends, receives and decodes them       courier.py, codec.py
    Exchange    when they are waited for, what is kept          here

    blocking    start ........ wait | owned sources | halo sources
    overlap     start | owned sources | wait ...... | halo sources
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.codec import make_codec
from gnn_dist.halo.courier import Courier, Parcel, Place
from gnn_dist.halo.policy import Blocking, HaloPolicy, Overlap, Term
from gnn_dist.halo.route import Route, back, there
from gnn_dist.halo.select import Selector, make_selector
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.plan import HaloPlan

__all__ = [
    "Exchange",
    "ExchangeMaker",
    "LayerExchange",
    "Pending",
    "halo_exchange",
]


class Pending(Protocol):
    """Rows under way."""

    def wait(self) -> Tensor:
        """Return the rows once they are here."""


class Exchange(Protocol):
    """One direction of one layer's exchange."""

    def start(self, rows: Tensor) -> Pending:
        """Collective. Begin to send rows; nothing is waited for unless the policy says so."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs (caches of stale rows); empty for exact policies."""


@dataclass(frozen=True)
class LayerExchange:
    """Both directions of one layer, with the plan they follow.

    Attributes:
        plan: Which rows go where.
        forward: Takes owned rows (n, ...), returns halo rows (h, ...).
        reverse: Takes halo rows (h, ...), returns boundary rows (s, ...) for `plan.add_boundary`.
        mirrored: Takes owned rows, returns halo rows, like `forward`, but for gradients: on a
            symmetric graph they may travel so instead of in reverse. None where the policy's
            adjoint is the reverse alone. A layer uses one of the two.
        sums_only: Why halo rows are of use for sums alone; "" if they are of any.
    """

    plan: HaloPlan
    forward: Exchange
    reverse: Exchange
    mirrored: Exchange | None
    sums_only: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank only, so that nothing ever travels."""
        return len(self.plan.recv_ptr) == 2

    def check_any_use(self, what: str) -> None:
        """Raise ConfigError if halo rows may only be summed, naming what would do otherwise."""
        if self.sums_only:
            raise ConfigError(f"{what} does not sum halo rows, but {self.sums_only}")


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


@dataclass(frozen=True)
class OverlappedExchange:
    """Waits when the rows are asked for; work done in between hides the transfer."""

    courier: Courier
    selector: Selector

    def start(self, rows: Tensor) -> Pending:
        """Collective. Post receives, then sends."""
        return _Selected(self.courier.post(rows, self.selector.now()), self.selector.scale)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row outlives its exchange."""
        return {}


@dataclass(frozen=True)
class BlockingExchange:
    """Waits at once; the reference for every other policy."""

    courier: Courier
    selector: Selector

    def start(self, rows: Tensor) -> Pending:
        """Collective. Exchange and wait."""
        return _Arrived(OverlappedExchange(self.courier, self.selector).start(rows).wait())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row outlives its exchange."""
        return {}


# How each schedule is made of a courier and what selects its rows.
SCHEDULES: dict[type[Term], Callable[[Courier, Selector], Exchange]] = {
    Blocking: BlockingExchange,
    Overlap: OverlappedExchange,
}


class ExchangeMaker:
    """Makes the exchanges of one model on one shard; they share routes, clock and meter.

    Args:
        plan: The shard's plan.
        transport: What carries the rows.
        policy: How they travel.
        clock: Tells the policy which step it is; one that stands still by default.
        meter: Where waiting time and bytes are counted.

    Raises:
        ConfigError: There is no such policy.
    """

    def __init__(
        self,
        plan: HaloPlan,
        transport: Transport,
        policy: HaloPolicy | str,
        *,
        clock: Clock | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.plan, self.transport = plan, transport
        self.policy = HaloPolicy.parse(policy) if isinstance(policy, str) else policy
        self.clock, self.meter = clock or Clock(), meter or Meter()
        self._there, self._back = there(plan, transport.rank), back(plan, transport.rank)

    def at(self, layer: int) -> LayerExchange:
        """Return the exchange of a layer; each has channels, and a state, of its own."""
        policy = self.policy
        mirrored = None
        if policy.select is None:
            mirrored = self._one_way(self._there, Place(layer, "reverse"))
        return LayerExchange(
            plan=self.plan,
            forward=self._one_way(self._there, Place(layer, "forward")),
            reverse=self._one_way(self._back, Place(layer, "reverse")),
            mirrored=mirrored,
            sums_only=policy.sums_only,
        )

    def _one_way(self, route: Route, place: Place) -> Exchange:
        codec = make_codec(self.policy)
        courier = Courier(self.transport, route, codec, self.clock, self.meter, place)
        selector = make_selector(self.policy, route, self.clock)
        return SCHEDULES[type(self.policy.schedule)](courier, selector)


def halo_exchange(x: Tensor, exchange: LayerExchange) -> Tensor:
    """Collective. Return the halo rows (h, ...) of owned rows x (n, ...), differentiably.

    Gradients of halo rows go back to the ranks that own them and are added there. For a reduction
    that could start before the rows are here, use `aggregate`.

    Raises:
        ConfigError: On every rank: the policy's halo rows are for sums alone.
    """
    exchange.check_any_use("a layer that reads the rows of its sources")
    return _HaloRows.apply(x, exchange)  # type: ignore[no-any-return, no-untyped-call]


class _HaloRows(torch.autograd.Function):
    """Forward: values from their owners. Backward: gradients to the owners, added."""

    @staticmethod
    def forward(ctx, x, exchange):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.exchange, ctx.shape = exchange, x.shape
        return exchange.forward.start(x).wait()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        rows = ctx.exchange.reverse.start(grad.contiguous()).wait()
        return ctx.exchange.plan.add_boundary(grad.new_zeros(ctx.shape), rows), None
