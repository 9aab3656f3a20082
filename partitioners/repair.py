"""Mending assignments: nodes without neighbours are dealt out, empty parts are filled."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.partitioners.balance import Balance

__all__ = ["deal_out", "deal_to_lightest", "fill_empty_parts"]

Array = NDArray[Any]


def deal_out(assignment: Array, balance: Balance) -> None:
    """Give the nodes without a part to the parts that lack most, in place.

    Nodes that weigh in the rarest constraint are dealt first, by what the parts lack of it; so
    training nodes level the training nodes, and the rest level the number of nodes.

    Args:
        assignment: int32 (N,), -1 where a node has no part.
        balance: The constraints on the N nodes.
    """
    for k in np.argsort(balance.totals, kind="stable"):
        nodes = np.flatnonzero(assignment < 0)
        nodes = nodes[balance.weights[nodes, k] > 0]
        if len(nodes):
            placed = assignment >= 0
            loads = np.bincount(
                assignment[placed], balance.weights[placed, k], minlength=balance.num_parts
            )
            weights = balance.weights[nodes, k]
            assignment[nodes] = deal_to_lightest(loads, weights, balance.targets)
    left = np.flatnonzero(assignment < 0)  # they weigh nothing
    assignment[left] = np.arange(len(left)) % balance.num_parts


def deal_to_lightest(part_weight: Array, weights: Array, shares: Array) -> Array:
    """Deal nodes out so that the parts' weights come as near to their shares as they can.

    Like water poured into a vessel of uneven ground: the parts below the level that the new
    nodes' weight reaches are filled up to it, one part after the other. No part ends more than one
    node above the level. O(P log P + K log P) for K nodes.

    Args:
        part_weight: (P,), weight that each part has already.
        weights: Positive integer (K,), weights of the nodes to deal out.
        shares: Positive float64 (P,), how wide each part is.

    Returns:
        int32 (K,), the part of each node.
    """
    ground = part_weight / shares
    order = np.argsort(ground, kind="stable")
    water = float(weights.sum())
    levels = (water + np.cumsum(part_weight[order])) / np.cumsum(shares[order])
    # The level is that of the smallest set of lightest parts which does not reach the next part.
    level = levels[np.argmax(levels <= np.append(ground[order][1:], np.inf))]
    filled = np.cumsum(np.maximum(level - ground, 0) * shares)
    # A node belongs where its middle comes to lie when all are laid end to end. The last middle is
    # half a weight short of the end, which is more than rounding can be.
    middle = np.cumsum(weights) - weights / 2
    part = np.searchsorted(filled, middle, side="right")
    return np.minimum(part, len(shares) - 1).astype(np.int32)


def fill_empty_parts(assignment: Array, num_parts: int, cost: Array) -> tuple[Array, int]:
    """Give every empty part some nodes of the largest part, those that cost least.

    An empty part gets the mean number of nodes, or half of the largest part if that is less.
    O(N log N) if any part is empty, else O(N).

    Args:
        assignment: int32 (N,), N >= P.
        num_parts: P.
        cost: Numbers (N,): what it costs to take a node out of its part.

    Returns:
        An assignment without empty parts, and the number of nodes moved.
    """
    sizes = np.bincount(assignment, minlength=num_parts)
    order = np.lexsort((cost, assignment))  # part after part, cheapest node first
    next_in = np.cumsum(sizes) - sizes
    largest = [(-int(size), part) for part, size in enumerate(sizes)]
    heapq.heapify(largest)
    mended, moved = assignment.copy(), 0
    for empty in np.flatnonzero(sizes == 0):
        size, part = -largest[0][0], largest[0][1]
        take = max(1, min(len(assignment) // num_parts, size // 2))
        mended[order[next_in[part] : next_in[part] + take]] = empty
        next_in[part] += take
        moved += take
        heapq.heapreplace(largest, (take - size, part))
    return mended, moved
