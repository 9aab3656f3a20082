"""Ranges of consecutive original ids: no search, and good where the order has locality."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import hub_notes, make_balance
from gnn_dist.partitioners.options import check_choice

__all__ = ["Contiguous", "cut_chain"]

Array = NDArray[Any]

BALANCES = ("nodes", "edges")


@dataclass(frozen=True)
class Contiguous:
    """Cut the line of original ids into ranges.

    Attributes:
        balance: `nodes`: ranges of equal length, within one node. `edges`: the largest number of
            in-edges of a range is as small as ranges allow, and within that each range has about
            an equal share of what the earlier ones left (equal lengths if there are no edges).

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([1, 2, 3, 4, 0], [0, 0, 0, 0, 4], num_nodes=5)
        >>> Contiguous()(graph, 2).assignment.tolist()
        [0, 0, 1, 1, 1]
        >>> Contiguous(balance="edges")(graph, 2).assignment.tolist()
        [0, 1, 1, 1, 1]
    """

    name: ClassVar[str] = "contiguous"
    balance: str = "nodes"

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, BALANCES)

    def __call__(self, graph: Graph, num_parts: int) -> Partition:
        """Return ranges of consecutive ids."""
        if self.balance == "edges" and graph.num_edges:
            bounds = cut_chain(graph.indptr, num_parts)
        else:
            bounds = np.arange(num_parts + 1) * graph.num_nodes // num_parts
        balance = make_balance(graph, num_parts, self.balance)
        assignment = np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(bounds))
        return Partition(assignment, num_parts, notes=hub_notes(balance))


def cut_chain(prefix: Array, num_parts: int) -> Array:
    """Cut a chain of tasks into non-empty runs so that the heaviest run is as light as possible.

    Source: A. Pinar, C. Aykanat, "Fast optimal load balancing algorithms for 1D partitioning",
    Journal of Parallel and Distributed Computing 64 (2004), sections 2 and 4.3: bisection on the
    bottleneck with a greedy probe on prefix sums. O(P log N log W) for a total weight of W.

    Args:
        prefix: int64 (T + 1,), prefix sums from 0 of the integer weights of T tasks, T >= P.
        num_parts: P.

    Returns:
        int64 (P + 1,): run p holds the tasks `[bounds[p], bounds[p + 1])`.
    """
    total = int(prefix[-1])
    # No run can be lighter than the heaviest task or the mean; the two together always suffice.
    heaviest = int(np.diff(prefix).max())
    low = max(heaviest, -(-total // num_parts))
    high = -(-total // num_parts) + heaviest
    while low < high:
        middle = (low + high) // 2
        if _latest_starts(prefix, num_parts, middle)[-1] >= len(prefix) - 1:
            high = middle
        else:
            low = middle + 1
    return _near_equal_cuts(prefix, num_parts, low)


def _latest_starts(prefix: Array, num_parts: int, bottleneck: int) -> list[int]:
    """Return how far the first 0..P runs reach when each is filled up to the bottleneck."""
    reach = [0]
    for _ in range(num_parts):
        limit = prefix[reach[-1]] + bottleneck
        reach.append(int(np.searchsorted(prefix, limit, side="right")) - 1)
    return reach


def _earliest_starts(prefix: Array, num_parts: int, bottleneck: int) -> list[int]:
    """Return where the last P..0 runs can start at the earliest, in ascending order."""
    starts = [len(prefix) - 1]
    for _ in range(num_parts):
        limit = prefix[starts[-1]] - bottleneck
        starts.append(int(np.searchsorted(prefix, limit, side="left")))
    return starts[::-1]


def _near_equal_cuts(prefix: Array, num_parts: int, bottleneck: int) -> Array:
    """Return bounds of non-empty runs within the bottleneck, near equal weights."""
    num_tasks = len(prefix) - 1
    earliest = _earliest_starts(prefix, num_parts, bottleneck)
    bounds = np.zeros(num_parts + 1, np.int64)
    for run in range(1, num_parts):
        start = int(bounds[run - 1])
        last = int(np.searchsorted(prefix, prefix[start] + bottleneck, side="right")) - 1
        # An equal share of what is left, since an earlier hub may have taken more than its share.
        share = int(prefix[-1] - prefix[start]) / (num_parts - run + 1)
        cut = _nearest(prefix, int(prefix[start]) + share)
        cut = max(cut, earliest[run], start + 1)
        bounds[run] = min(cut, last, num_tasks - (num_parts - run))
    bounds[-1] = num_tasks
    return bounds


def _nearest(prefix: Array, target: float) -> int:
    """Return the position whose prefix sum is nearest to a target."""
    after = int(np.searchsorted(prefix, target))
    if after and target - prefix[after - 1] <= prefix[after] - target:
        return after - 1
    return after
