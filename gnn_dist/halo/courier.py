"""Carries rows along a route: encodes, sends, receives, decodes, and counts what it does."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import Codec, Wire
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

    @property
    def carries_gradients(self) -> bool:
        """Whether the rows are gradients, which a policy may encode otherwise."""
        return self.direction.startswith(("reverse", "gradient"))


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
        wire = self.codec.encode(rows, route, key)
        received = self.codec.buffer(rows, route)
        handle = self.transport.exchange(
            wire.data, wire.ptr, received.data, received.ptr, self.place.channel
        )
        self.meter.halo_bytes += wire.nbytes
        return Parcel(self, route, handle, received, rows.new_empty((0, *rows.shape[1:])))

    def state_dict(self) -> dict[str, Any]:
        """Return what the codec of a resumed run needs."""
        return self.codec.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned for this route.

        Raises:
            ValueError: It is of another route, or of another policy.
        """
        self.codec.load_state_dict(state)


@dataclass
class Parcel:
    """Rows on their way along a route.

    Attributes:
        courier: Who carries them.
        route: All of the courier's route, or a restriction of it.
        handle: The transport's.
        wire: What is received.
        like: No rows, of the width and dtype of those that were encoded.
    """

    courier: Courier
    route: Route
    handle: Handle
    wire: Wire
    like: Tensor

    def wait(self) -> Tensor:
        """Return the route's received rows (r, ...), decoded."""
        with self.courier.meter.timed(HALO_WAIT):
            self.handle.wait()
        return self.courier.codec.decode(self.wire, self.like)

    def done(self) -> bool:
        """Return whether `wait` would not block."""
        return self.handle.done()
