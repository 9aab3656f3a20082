"""Seconds by phase, what exchanges sent, waited for and held, of one rank since a reset."""

import math
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from gnn_dist.profile.trace import Trace

__all__ = ["BATCH_WAIT", "GRAD_SYNC", "HALO_WAIT", "HaloCount", "Lane", "Meter", "peak_rss_bytes"]

HALO_WAIT = "halo_wait"
GRAD_SYNC = "grad_sync"
BATCH_WAIT = "batch_wait"

Lane = tuple[int, str]  # a layer and a direction


@dataclass
class HaloCount:
    """What the exchanges of one layer and direction did.

    Attributes:
        exchanges: How many there were.
        bytes: Sent by this rank.
        messages: Sent by it: ranks that got rows.
        wait_s: Seconds of waiting for rows.
        late_s: Of them, seconds in which some sender had not even started to send; 0 unless the
            meter separates skew.
    """

    exchanges: int = 0
    bytes: int = 0
    messages: int = 0
    wait_s: float = 0.0
    late_s: float = 0.0


class Buffer(Protocol):
    """Memory that says how large it is, such as a tensor."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


class Meter:
    """Counts for one rank. Not shared between threads.

    Attributes:
        halo: Counts of exchanges by layer and direction.
        separates_skew: Whether exchanges find out which part of their waiting is for senders that
            are late; it costs a message of one byte beside each message. To be set before a step,
            alike on all ranks.
        trace: Records what happens when, if it is not None; to be set before a step.
        change: By direction, layer and use in the step, how much the rows that a stale exchange
            has renewed are others than before: the norm of the change over the norm.
        peak_held_bytes: The most memory of messages and received rows at one time.

    Example:
        >>> meter = Meter()
        >>> with meter.timed(HALO_WAIT):
        ...     pass
        >>> meter.seconds(HALO_WAIT) >= 0.0
        True
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self.halo: dict[Lane, HaloCount] = defaultdict(HaloCount)
        self.separates_skew = False
        self.trace: Trace | None = None
        self.change: dict[tuple[str, int, int], SupportsFloat] = {}
        self.peak_held_bytes = self._held_bytes = 0

    @property
    def halo_bytes(self) -> int:
        """Bytes sent in exchanges."""
        return sum(count.bytes for count in self.halo.values())

    @property
    def halo_messages(self) -> int:
        """Messages sent in exchanges."""
        return sum(count.messages for count in self.halo.values())

    def add(self, phase: str, seconds: float) -> None:
        """Add time that was measured elsewhere to a phase."""
        self._seconds[phase] += seconds

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._add(phase, start)

    @contextmanager
    def waiting(self, lane: Lane) -> Iterator[None]:
        """Add the time spent inside to the waiting for rows of a layer and direction."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.halo[lane].wait_s += self._add(HALO_WAIT, start)

    @contextmanager
    def late(self, lane: Lane) -> Iterator[None]:
        """Add the time spent inside, part of some waiting, to that for late senders."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.halo[lane].late_s += time.perf_counter() - start

    def sent(self, lane: Lane, num_bytes: int, num_messages: int) -> None:
        """Count an exchange that was posted."""
        count = self.halo[lane]
        count.exchanges += 1
        count.bytes += num_bytes
        count.messages += num_messages

    def _add(self, phase: str, start: float) -> float:
        """Add the time since `start` to a phase, and return it."""
        end = time.perf_counter()
        self._seconds[phase] += end - start
        if self.trace is not None:
            self.trace.add(phase, start, end)
        return end - start

    def seconds(self, phase: str) -> float:
        """Return the seconds of a phase."""
        return self._seconds[phase]

    def largest_change(self, *directions: str) -> float:
        """Return the largest change of some directions' rows in any layer, NaN without any.

        Rows that were all zeros have none: their norm is no measure.
        """
        found = [float(value) for key, value in self.change.items() if key[0] in directions]
        return max((value for value in found if math.isfinite(value)), default=math.nan)

    def reset(self) -> None:
        """Start again from zero."""
        self._seconds.clear()
        self.halo.clear()
        self.change.clear()
        self.peak_held_bytes = self._held_bytes

    def hold(self, *buffers: Buffer) -> None:
        """Count buffers as held for as long as they exist."""
        for buffer in buffers:
            self._held_bytes += buffer.nbytes
            weakref.finalize(buffer, self._let_go, buffer.nbytes).atexit = False
        self.peak_held_bytes = max(self.peak_held_bytes, self._held_bytes)

    def _let_go(self, size: int) -> None:
        self._held_bytes -= size


def peak_rss_bytes() -> int:
    """Return the largest resident memory this process has had, in bytes."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
