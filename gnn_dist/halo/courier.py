"""Carries rows along a route: encodes, sends, receives, decodes, and counts what it does."""

from dataclasses import dataclass

from torch import Tensor

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.codec import Codec
from gnn_dist.halo.route import Route
from gnn_dist.profile.meter import HALO_WAIT, Meter

__all__ = ["Courier", "Parcel", "Place"]

# Values, gradients; and more for what only some layers, or some policies, send.
DIRECTIONS = (
    *("forward", "reverse", "up", "down"),
    *("forward direct", "forward spread", "reverse direct", "reverse spread"),
)


@dataclass(frozen=True)
class Place:
    """Where in a model an exchange is.

    Attributes:
        layer: The layer's number, from 0.
        direction: `forward` or `reverse`, ...
    """

    layer: int
    direction: str

    @property
    def channel(self) -> int:
        """The transport's channel, which tells exchanges that are in flight together apart."""
        return len(DIRECTIONS) * self.layer + DIRECTIONS.index(self.direction)


@dataclass(frozen=True, eq=False)
class Courier:
    """One direction of one layer.

    Attributes:
        transport: What carries the bytes.
        route: Which rows.
        codec: What they are on the wire.
        clock: Of the run.
        meter: Where waiting time and bytes are counted.
        place: Which layer and direction.
    """

    transport: Transport
    route: Route
    codec: Codec
    clock: Clock
    meter: Meter
    place: Place

    def post(self, rows: Tensor, route: Route | None = None) -> "Parcel":
        """Collective. Post receives, then send rows; nothing is waited for.

        Args:
            rows: What the route's `send_index` refers to.
            route: A restriction of the courier's own, chosen alike on every rank.
        """
        route = route or self.route
        key = self.clock.key(self.place.channel)
        wire = self.codec.encode(rows, route.send_index, route.send_id, key)
        received = self.codec.buffer(rows, route.num_received)
        handle = self.transport.exchange(
            wire, route.send_ptr, received, route.recv_ptr, self.place.channel
        )
        self.meter.halo_bytes += wire.nbytes
        self.meter.halo_messages += route.num_messages
        self.meter.hold(wire, received)
        return Parcel(self, route, handle, received, rows.new_empty((0, *rows.shape[1:])), wire)


@dataclass
class Parcel:
    """Rows on their way along a route.

    Attributes:
        courier: Who carries them.
        route: All of the courier's route, or a restriction of it.
        handle: The transport's.
        wire: What is received.
        like: No rows, of the width and dtype of those that were encoded.
        sent: What is sent, until it has gone.
    """

    courier: Courier
    route: Route
    handle: Handle
    wire: Tensor
    like: Tensor
    sent: Tensor | None

    def wait(self) -> Tensor:
        """Return the route's received rows (r, ...), decoded."""
        meter = self.courier.meter
        with meter.timed(HALO_WAIT):
            self.handle.wait()
        self.sent = None
        rows = self.courier.codec.decode(self.wire, self.like)
        if rows is not self.wire:
            meter.hold(rows)
        return rows

    def done(self) -> bool:
        """Return whether `wait` would not block."""
        return self.handle.done()
