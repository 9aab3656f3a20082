"""Carries rows along a route: encodes, sends, receives, decodes, and counts what it does."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import Codec, Wire
from gnn_dist.profile.meter import Lane, Meter

__all__ = ["DIRECTIONS", "Courier", "Parcel", "Place"]

# Values and gradients of halo rows, also by way of other ranks; partial sums of clones, up to the
# root and down, and likewise their gradients.
DIRECTIONS = (
    *("forward", "reverse", "up", "down", "gradient up", "gradient down"),
    *("forward direct", "forward spread", "reverse direct", "reverse spread"),
)
ROLL_CALLS = 16_000  # channels from here on tell that a sender has come to an exchange


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
    def lane(self) -> Lane:
        """Where a meter counts it."""
        return self.layer, self.direction

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
        roll_call = self._call_roll(route) if self.meter.separates_skew else None
        posted_s = time.perf_counter()
        handle = self.transport.exchange(
            wire.data, wire.ptr, received.data, received.ptr, self.place.channel
        )
        self.meter.sent(self.place.lane, wire.nbytes, route.num_messages)
        self.meter.hold(wire.data, received.data)
        if self.meter.trace is not None:
            handle.done()  # some transports look whether it is complete from the first question on
        like = rows.new_empty((0, *rows.shape[1:]))
        return Parcel(self, route, handle, received, like, wire, roll_call, posted_s)

    def _call_roll(self, route: Route) -> Handle:
        """Collective. Start to send a byte wherever rows go: it arrives once they are sent."""
        ptrs = [_ones(ptr) for ptr in (route.send_ptr, route.recv_ptr)]
        device = self.transport.device
        here, others = (torch.zeros(ptr[-1], dtype=torch.uint8, device=device) for ptr in ptrs)
        channel = ROLL_CALLS + self.place.channel
        return self.transport.exchange(here, ptrs[0], others, ptrs[1], channel)

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
        sent: What is sent, until it has gone.
        roll_call: Complete once every sender has come to this exchange; None if nobody asks.
        posted_s: When it was posted, by `time.perf_counter`.
    """

    courier: Courier
    route: Route
    handle: Handle
    wire: Wire
    like: Tensor
    sent: Wire | None
    roll_call: Handle | None
    posted_s: float

    def wait(self) -> Tensor:
        """Return the route's received rows (r, ...), decoded."""
        meter, place = self.courier.meter, self.courier.place
        with meter.waiting(place.lane):
            if self.roll_call is not None:
                with meter.late(place.lane):
                    self.roll_call.wait()
            self.handle.wait()
        if meter.trace is not None:
            track = f"layer {place.layer} {place.direction}"
            end_s = self.handle.completed_s or self.posted_s  # with itself alone, at once
            meter.trace.add("exchange", self.posted_s, end_s, track)
        self.sent = None
        rows = self.courier.codec.decode(self.wire, self.like)
        if rows is not self.wire.data:
            meter.hold(rows)
        return rows

    def done(self) -> bool:
        """Return whether `wait` would not block."""
        return self.handle.done()


def _ones(ptr: Sequence[int]) -> tuple[int, ...]:
    """Return offsets of one element wherever there are rows."""
    return tuple(itertools.accumulate((int(a < b) for a, b in itertools.pairwise(ptr)), initial=0))
