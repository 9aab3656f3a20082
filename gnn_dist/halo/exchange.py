"""Moving halo rows: one exchange per layer and direction, behind one seam for every policy.

    start(rows) -> Pending          Pending.wait() -> the rows that arrived

What a policy changes, it changes inside an exchange: layers and `aggregate` never see it.

    Selector    which rows of the route travel in this step     select.py
    Courier     encodes, sends, receives and decodes them       courier.py, codec.py
    Exchange    when they are waited for, what is kept          here

    blocking    start ........ wait | owned sources | halo sources
    overlap     start | owned sources | wait ...... | halo sources
    remat       start | owned sources | wait | use | wait | use | ...      remat.py, pieces.py
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.control_server import host_identity
from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.codec import make_codec
from gnn_dist.halo.courier import Courier, Parcel, Place
from gnn_dist.halo.pending import Exchange, Pending
from gnn_dist.halo.policy import Blocking, HaloPolicy, Overlap, Remat, Term
from gnn_dist.halo.relay import RelayPlan, plan_relay
from gnn_dist.halo.relayed import RelayedBack, RelayedThere
from gnn_dist.halo.remat import RematExchange
from gnn_dist.halo.route import Route, back, there
from gnn_dist.halo.select import Selector, make_selector
from gnn_dist.ops.rows import scatter_add_rows
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.plan import HaloPlan

__all__ = [
    "Exchange",
    "ExchangeMaker",
    "LayerExchange",
    "Pending",
    "halo_exchange",
]


@dataclass(frozen=True)
class LayerExchange:
    """Both directions of one layer, with the plan they follow.

    Attributes:
        plan: Which rows go where.
        forward: Takes owned rows (n, ...), returns halo rows (h, ...).
        reverse: Takes halo rows (h, ...), returns boundary rows (s, ...) for `add_boundary`.
        mirrored: Takes owned rows, returns halo rows, like `forward`, but for gradients: on a
            symmetric graph they may travel so instead of in reverse. None where the policy's
            adjoint is the reverse alone. A layer uses one of the two.
        sums_only: Why halo rows are of use for sums alone; "" if they are of any.
        boundary_index: int64 (s,), owned rows that boundary rows belong to; None: `plan`'s own.
        in_pieces: Why not all halo rows can be here at once; "" if they can.
    """

    plan: HaloPlan
    forward: Exchange
    reverse: Exchange
    mirrored: Exchange | None
    sums_only: str = ""
    boundary_index: Tensor | None = None
    in_pieces: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank only, so that nothing ever travels."""
        return len(self.plan.recv_ptr) == 2

    def add_boundary(self, out: Tensor, rows: Tensor) -> Tensor:
        """Add boundary rows (s, ...) of a reverse exchange to owned rows (n, ...), in place."""
        index = self.plan.send_index if self.boundary_index is None else self.boundary_index
        return scatter_add_rows(out, index, rows)

    def check_any_use(self, what: str) -> None:
        """Raise ConfigError if halo rows may only be summed, naming what would do otherwise."""
        if self.sums_only:
            raise ConfigError(f"{what} does not sum halo rows, but {self.sums_only}")

    def check_all_rows(self, what: str) -> None:
        """Raise ConfigError if halo rows may not be kept together, naming what would do so."""
        self.check_any_use(what)
        if self.in_pieces:
            raise ConfigError(f"{what} needs all halo rows at once, but {self.in_pieces}")


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
        machines: For each rank its machine, for a policy that relays; by default asked of them.

    Collective where the policy relays.

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
        machines: Sequence[object] | None = None,
    ) -> None:
        self.plan, self.transport = plan, transport
        self.policy = HaloPolicy.parse(policy) if isinstance(policy, str) else policy
        self.clock, self.meter = clock or Clock(), meter or Meter()
        self._there, self._back = there(plan, transport.rank), back(plan, transport.rank)
        self._relay: RelayPlan | None = None
        if self.policy.path is not None:
            if machines is None:
                machines = transport.all_gather_object(host_identity())
            relay = plan_relay(plan, machines, transport)
            self._relay = relay if relay.saved >= self.policy.path.least else None

    def at(self, layer: int) -> LayerExchange:
        """Return the exchange of a layer; each has channels, and a state, of its own."""
        if self._relay is not None:
            return self._relayed(layer, self._relay)
        value, gradient = Place(layer, "forward"), Place(layer, "reverse")
        return self._layer(
            self._one_way(self._there, value),
            self._one_way(self._back, gradient),
            self._one_way(self._there, gradient),
        )

    def _relayed(self, layer: int, relay: RelayPlan) -> LayerExchange:
        rank = self.transport.rank

        def forth(direction: str) -> Exchange:
            place = partial(Place, layer)
            return RelayedThere(
                relay,
                self._one_way(there(relay.direct, rank), place(f"{direction} direct"), near=True),
                self._one_way(there(relay.across, rank), place(direction)),
                self._one_way(there(relay.spread, rank), place(f"{direction} spread"), near=True),
            )

        reverse = RelayedBack(
            relay,
            self._one_way(back(relay.direct, rank), Place(layer, "reverse direct"), near=True),
            self._one_way(back(relay.spread, rank), Place(layer, "reverse spread"), near=True),
            self._one_way(back(relay.across, rank), Place(layer, "reverse")),
        )
        made = self._layer(forth("forward"), reverse, forth("reverse"))
        index = torch.cat([relay.direct.send_index, relay.across.send_index])
        return replace(made, boundary_index=index)

    def _layer(self, forward: Exchange, reverse: Exchange, mirrored: Exchange) -> LayerExchange:
        return LayerExchange(
            plan=self.plan,
            forward=forward,
            reverse=reverse,
            # Sampled rows' adjoint is of the same rows: the way back.
            mirrored=mirrored if self.policy.select is None else None,
            sums_only=self.policy.sums_only,
            in_pieces=self.policy.in_pieces,
        )

    def _one_way(self, route: Route, place: Place, *, near: bool = False) -> Exchange:
        """Make one direction; near, on a machine, rows travel as they are and are waited for."""
        policy = HaloPolicy() if near else self.policy
        codec = make_codec(policy)
        courier = Courier(self.transport, route, codec, self.clock, self.meter, place)
        schedule = policy.schedule
        if isinstance(schedule, Remat):
            return RematExchange(courier, schedule.buffer)
        selector = make_selector(policy, route, self.clock)
        return SCHEDULES[type(schedule)](courier, selector)


def halo_exchange(x: Tensor, exchange: LayerExchange) -> Tensor:
    """Collective. Return the halo rows (h, ...) of owned rows x (n, ...), differentiably.

    Gradients of halo rows go back to the ranks that own them and are added there. For a reduction
    that could start before the rows are here, use `aggregate`.

    Raises:
        ConfigError: On every rank: the policy's halo rows are for sums alone, or never all here.
    """
    exchange.check_all_rows("a layer that reads the rows of its sources")
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
        return ctx.exchange.add_boundary(grad.new_zeros(ctx.shape), rows), None
