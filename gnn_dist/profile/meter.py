"""Seconds by phase and bytes on the wire, of one rank, since the last reset."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["GRAD_SYNC", "HALO_WAIT", "Meter", "peak_rss_bytes"]

HALO_WAIT = "halo_wait"
GRAD_SYNC = "grad_sync"


class Meter:
    """Counts for one rank. Not shared between threads.

    Example:
        >>> meter = Meter()
        >>> with meter.timed(HALO_WAIT):
        ...     pass
        >>> meter.seconds(HALO_WAIT) >= 0.0
        True
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self.halo_bytes = 0

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
        self.halo_bytes = 0


def peak_rss_bytes() -> int:
    """Return the largest resident memory this process has had, in bytes."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else peak * 1024
