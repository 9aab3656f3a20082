"""Moving halo rows: one exchange per layer and direction, behind one seam for every policy.

    start(rows) -> Pending          Pending.wait() -> the rows that arrived

What a policy changes, it changes inside an exchange: layers and `aggregate` never see it.

    Selector    which rows of the route travel in this step     select.py
    Courier     encodes, sends, receives and decodes them       courier.py, codec.py
    Exchange    when they are waited for, what is kept          schedules.py

    blocking    start ........ wait | owned sources | halo sources
    overlap     start | owned sources | wait ...... | halo sources
    others      start | owned sources | wait for older rows, if for any | halo sources   stale.py
    remat       start | owned sources | wait | use | wait | use | ...      remat.py, pieces.py
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.control_server import host_identity
from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.codec import make_codec
from gnn_dist.halo.courier import Courier, Place
from gnn_dist.halo.pending import Exchange, Pending
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.halo.relay import RelayPlan, plan_relay
from gnn_dist.halo.relayed import RelayedBack, RelayedThere
from gnn_dist.halo.route import Route, back, there
from gnn_dist.halo.schedules import SCHEDULES
from gnn_dist.halo.select import make_selector
from gnn_dist.ops.rows import scatter_add_rows
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.plan import HaloPlan

__all__ = [
    "CLONES_ADD",
    "CloneExchange",
    "Exchange",
    "ExchangeMaker",
    "LayerExchange",
    "Pending",
    "RoundTrip",
    "halo_exchange",
]


@dataclass(frozen=True)
class RoundTrip:
    """From other clones to the roots of their nodes, and from there to the clones again.

    Attributes:
        up: Takes halo rows (h, ...), returns boundary rows (s, ...).
        down: Takes boundary rows (s, ...), returns halo rows (h, ...).
    """

    up: Exchange
    down: Exchange


@dataclass(frozen=True)
class CloneExchange:
    """What one layer sends on a vertex-cut: partial sums of clones, in place of halo rows.

    Attributes:
        values: Of the forward.
        gradients: Of the backward.
        exact: Whether what arrives is what was sent.
    """

    values: RoundTrip
    gradients: RoundTrip
    exact: bool

    @property
    def directions(self) -> dict[str, Exchange]:
        """The exchanges by what they are for."""
        trips = {"": self.values, "gradient ": self.gradients}
        return {
            f"{prefix}{way}": exchange
            for prefix, trip in trips.items()
            for way, exchange in (("up", trip.up), ("down", trip.down))
        }


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
        clones: On a vertex-cut, what travels in place of halo rows.
        holds: Whether rows are kept for later steps: those returned must not be changed in place.
        in_pieces: Why not all halo rows can be here at once; "" if they can.
    """

    plan: HaloPlan
    forward: Exchange
    reverse: Exchange
    mirrored: Exchange | None
    sums_only: str = ""
    boundary_index: Tensor | None = None
    clones: CloneExchange | None = None
    holds: bool = False
    in_pieces: str = ""

    @property
    def directions(self) -> dict[str, Exchange]:
        """The exchanges by what they are for."""
        every = {"forward": self.forward, "reverse": self.reverse}
        if self.mirrored is not None:
            every["mirrored"] = self.mirrored
        return every if self.clones is None else {**every, **self.clones.directions}

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


CLONES_ADD = (
    "on a vertex-cut partition the in-edges of a node lie on several ranks, which can only add up: "
    "use an edge-cut partition, such as --method metis"
)


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
        ConfigError: There is no such policy, it relays or bounds memory on a vertex-cut, or it
            holds rows from step to step and has no clock.
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
        if self.policy.holds and clock is None:
            raise ConfigError(f"{self.policy} uses rows of earlier steps, so it needs a clock")
        self.clock, self.meter = clock or Clock(), meter or Meter()
        self._made: list[LayerExchange] = []
        self._there, self._back = there(plan, transport.rank), back(plan, transport.rank)
        self._relay: RelayPlan | None = None
        if self.policy.in_pieces and plan.clones:
            raise ConfigError(
                f"{self.policy} bounds the memory of halo rows, but on a vertex-cut partition "
                "partial sums travel in their place: use an edge-cut, such as --method metis"
            )
        if self.policy.path is not None and plan.clones:
            raise ConfigError(
                f"{self.policy} sends one row for all readers on a machine, but on a vertex-cut "
                f"partition each of them gets another one: leave {self.policy.path.name} out"
            )
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
            self._clones_at(layer),
        )

    @cached_property
    def fingerprint(self) -> str:
        """Of all that states depend on: this rank's rows, the ranks, and the policy."""
        plans = [self.plan] if self._relay is None else [self.plan, self._relay.across]
        rank = self.transport.rank
        prints = [way(plan, rank).fingerprint for plan in plans for way in (there, back)]
        return hashlib.sha256(repr((str(self.policy), *prints)).encode()).hexdigest()

    @property
    def stateful(self) -> bool:
        """Whether exchanges have a state that a resumed run goes on from."""
        return self.policy.stateful

    def drain(self) -> None:
        """Wait for rows on their way, which is due before the ranks part.

        Not before an exact exchange: messages of a channel are told apart by their order.
        """
        for exchange in self._directions().values():
            exchange.drain()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all exchanges made; what is on its way is waited for."""
        states = {name: exchange.state_dict() for name, exchange in self._directions().items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the states of the exchanges of a maker with the same fingerprint."""
        for name, exchange in self._directions().items():
            if name in state:
                exchange.load_state_dict(state[name])

    def _directions(self) -> dict[str, Exchange]:
        return {
            f"{number}.{name}": exchange
            for number, made in enumerate(self._made)
            for name, exchange in made.directions.items()
        }

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
            self._one_way(back(relay.across, rank), Place(layer, "reverse")),
            self._one_way(back(relay.spread, rank), Place(layer, "reverse spread"), near=True),
        )
        made = self._layer(forth("forward"), reverse, forth("reverse"))
        index = torch.cat([relay.direct.send_index, relay.across.send_index])
        return replace(made, boundary_index=index)

    def _layer(
        self,
        forward: Exchange,
        reverse: Exchange,
        mirrored: Exchange,
        clones: CloneExchange | None = None,
    ) -> LayerExchange:
        policy = self.policy
        either = policy.select is None or policy.holds
        made = LayerExchange(
            plan=self.plan,
            forward=forward,
            reverse=reverse,
            # Sampled rows' adjoint is of the same rows: the way back. Held rows have none.
            mirrored=mirrored if either and clones is None else None,
            sums_only=policy.sums_only if clones is None else CLONES_ADD,
            clones=clones,
            holds=policy.holds,
            in_pieces=policy.in_pieces,
        )
        self._made.append(made)
        return made

    def _clones_at(self, layer: int) -> CloneExchange | None:
        """Return what carries partial sums at a layer; None on an edge-cut."""
        if not self.plan.clones:
            return None

        def both(prefix: str) -> RoundTrip:
            # Every reader of a node gets another row: what the others' clones add up to.
            down = replace(self._there, send_index=None)
            return RoundTrip(
                self._one_way(self._back, Place(layer, f"{prefix}up")),
                self._one_way(down, Place(layer, f"{prefix}down")),
            )

        return CloneExchange(both(""), both("gradient "), self.policy.exact)

    def _one_way(self, route: Route, place: Place, *, near: bool = False) -> Exchange:
        """Make one direction; near, on a machine, rows travel as they are and are waited for."""
        policy = HaloPolicy() if near else self.policy
        codec = make_codec(
            policy,
            gradients=place.carries_gradients,
            transport=self.transport,
            channel=place.channel,
            clock=self.clock,
        )
        courier = Courier(self.transport, route, codec, self.clock, self.meter, place)
        selector = make_selector(policy, route, self.clock)
        return SCHEDULES[type(policy.schedule)](courier, selector, policy)


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
        rows = exchange.forward.start(x).wait()
        return rows.clone() if exchange.holds else rows  # whoever gets them may change them

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        rows = ctx.exchange.reverse.start(grad.contiguous()).wait()
        return ctx.exchange.add_boundary(grad.new_zeros(ctx.shape), rows), None
