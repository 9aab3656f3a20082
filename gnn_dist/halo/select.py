"""Which rows of a route travel in a step; both ends work it out alike, and nothing is asked."""

from typing import Protocol

from gnn_dist.halo.clock import Clock
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.halo.route import Route
from gnn_dist.ops.draws import uniform_by_id

__all__ = ["AllRows", "SampledRows", "Selector", "make_selector"]

SAMPLE_SITE = (1 << 20) - 1  # of the policies' draws; their others are channels


class Selector(Protocol):
    """Chooses rows of one route.

    Attributes:
        scale: What received rows are multiplied by, so that sums are right on average.
    """

    scale: float

    def now(self) -> Route:
        """Return the route of the rows that travel in this step."""

    def of(self, route: Route) -> "Selector":
        """Return what chooses in the same way among the rows of another route."""


class AllRows:
    """Every row, in every step."""

    scale = 1.0

    def __init__(self, route: Route) -> None:
        self._route = route

    def now(self) -> Route:
        """Return the whole route."""
        return self._route

    def of(self, route: Route) -> "AllRows":
        """Return what chooses all rows of another route."""
        return AllRows(route)


class SampledRows:
    """Each row to each of its readers with probability p.

    The draw is of (step, node, reader) and not of the layer: in one step all layers, and gradients
    as well as values, use the same part of the halo, as if it were the graph of that step.

    Args:
        route: All rows.
        p: The probability.
        clock: Of the run.
    """

    def __init__(self, route: Route, p: float, clock: Clock) -> None:
        self.scale = 1.0 / p
        self._route, self._p, self._clock = route, p, clock
        self._last: tuple[int, Route] | None = None

    def now(self) -> Route:
        """Return the route of the rows that this step has drawn."""
        if self._last is None or self._last[0] != self._clock.step:
            key = self._clock.key(SAMPLE_SITE)
            send, recv = (
                uniform_by_id(key, ids) < self._p
                for ids in (self._route.send_key, self._route.recv_key)
            )
            self._last = self._clock.step, self._route.restrict(send, recv)
        return self._last[1]

    def of(self, route: Route) -> "SampledRows":
        """Return what draws alike among the rows of another route."""
        return SampledRows(route, self._p, self._clock)


def make_selector(policy: HaloPolicy, route: Route, clock: Clock) -> Selector:
    """Return what chooses a route's rows under a policy."""
    if policy.select is None:
        return AllRows(route)
    return SampledRows(route, policy.select.p, clock)
