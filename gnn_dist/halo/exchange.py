"""Moving halo rows: one exchange per layer and direction, behind one seam for every policy.

    start(rows) -> Pending          Pending.wait() -> the rows that arrived

What a policy changes, it changes inside an exchange: layers and `aggregate` never see it. Today
there are two, and they differ in when the waiting is done:

    blocking    start ........ wait | owned sources | halo sources
    overlap     start | owned sources | wait ...... | halo sources
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.errors import ConfigError, nearest
from gnn_dist.ops.rows import gather_rows, new_rows_like
from gnn_dist.profile.meter import HALO_WAIT, Meter
from gnn_dist.shard.plan import HaloPlan

__all__ = [
    "HALO_POLICIES",
    "Exchange",
    "LayerExchange",
    "Pending",
    "Route",
    "check_policy",
    "halo_exchange",
    "make_exchange",
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
            symmetric graph they may travel so instead of in reverse. A layer uses one of the two.
    """

    plan: HaloPlan
    forward: Exchange
    reverse: Exchange
    mirrored: Exchange

    @property
    def is_alone(self) -> bool:
        """Whether there is one rank only, so that nothing ever travels."""
        return len(self.plan.recv_ptr) == 2


@dataclass
class _Travelling:
    handle: Handle
    rows: Tensor
    meter: Meter

    def wait(self) -> Tensor:
        with self.meter.timed(HALO_WAIT):
            self.handle.wait()
        return self.rows


@dataclass
class _Arrived:
    rows: Tensor

    def wait(self) -> Tensor:
        return self.rows


@dataclass(frozen=True)
class Route:
    """One direction of a plan.

    Attributes:
        send_index: int64, which of the rows are sent; None sends them as they are.
        send_ptr: (world_size + 1) offsets of what is sent to each rank.
        recv_ptr: (world_size + 1) offsets of what comes from each rank.
        channel: Tells exchanges that are in flight together apart.
    """

    send_index: Tensor | None
    send_ptr: tuple[int, ...]
    recv_ptr: tuple[int, ...]
    channel: int


@dataclass(frozen=True)
class OverlappedExchange:
    """Waits when the rows are asked for; work done in between hides the transfer."""

    transport: Transport
    route: Route
    meter: Meter

    def start(self, rows: Tensor) -> Pending:
        """Collective. Post receives, then sends."""
        route = self.route
        send = rows if route.send_index is None else gather_rows(rows, route.send_index)
        received = new_rows_like(rows, route.recv_ptr[-1])
        handle = self.transport.exchange(
            send.contiguous(), route.send_ptr, received, route.recv_ptr, route.channel
        )
        self.meter.halo_bytes += send.numel() * send.element_size()
        return _Travelling(handle, received, self.meter)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row outlives its exchange."""
        return {}


@dataclass(frozen=True)
class BlockingExchange:
    """Waits at once; the reference for every other policy."""

    overlapped: OverlappedExchange

    def start(self, rows: Tensor) -> Pending:
        """Collective. Exchange and wait."""
        return _Arrived(self.overlapped.start(rows).wait())

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no row outlives its exchange."""
        return {}


def _blocking(transport: Transport, route: Route, meter: Meter) -> Exchange:
    return BlockingExchange(OverlappedExchange(transport, route, meter))


HALO_POLICIES: dict[str, Callable[[Transport, Route, Meter], Exchange]] = {
    "blocking": _blocking,
    "overlap": OverlappedExchange,
}


def check_policy(policy: str) -> None:
    """Raise ConfigError if there is no such halo policy."""
    if policy not in HALO_POLICIES:
        raise ConfigError(f"no halo policy {policy!r}: {nearest(policy, list(HALO_POLICIES))}")


def make_exchange(
    plan: HaloPlan, transport: Transport, policy: str, *, layer: int, meter: Meter | None = None
) -> LayerExchange:
    """Make the exchange of one layer.

    Args:
        plan: The shard's plan.
        transport: What carries the rows.
        policy: A name of `HALO_POLICIES`.
        layer: The layer's number; each direction of each layer has a channel of its own.
        meter: Where waiting time and bytes are counted.

    Raises:
        ConfigError: There is no such policy.
    """
    check_policy(policy)
    make, meter = HALO_POLICIES[policy], meter or Meter()
    there = Route(plan.send_index, plan.send_ptr, plan.recv_ptr, 2 * layer)
    back = Route(None, plan.recv_ptr, plan.send_ptr, 2 * layer + 1)
    mirrored = replace(there, channel=2 * layer + 1)
    forward, reverse, gradients = (make(transport, r, meter) for r in (there, back, mirrored))
    return LayerExchange(plan, forward, reverse, gradients)


def halo_exchange(x: Tensor, exchange: LayerExchange) -> Tensor:
    """Collective. Return the halo rows (h, ...) of owned rows x (n, ...), differentiably.

    Gradients of halo rows go back to the ranks that own them and are added there. For a reduction
    that could start before the rows are here, use `aggregate`.
    """
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
