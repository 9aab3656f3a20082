"""Seconds by phase, bytes on the wire and bytes held, of one rank, since the last reset."""

import time
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["GRAD_SYNC", "HALO_WAIT", "Meter", "peak_rss_bytes"]

HALO_WAIT = "halo_wait"
GRAD_SYNC = "grad_sync"


class Buffer(Protocol):
    """Memory that says how large it is, such as a tensor."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""


class Meter:
    """Counts for one rank. Not shared between threads.

    Attributes:
        halo_bytes: Bytes of halo rows and of their gradients that were sent.
        halo_messages: In how many messages.
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
        self.halo_bytes = self.halo_messages = 0
        self.peak_held_bytes = self._held_bytes = 0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - start

    def seconds(self, phase: str) -> float:
        """Return the seconds of a phase."""
        return self._seconds[phase]

    def reset(self) -> None:
        """Start again from zero."""
        self._seconds.clear()
        self.halo_bytes = self.halo_messages = 0
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
