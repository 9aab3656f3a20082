"""Mending assignments: nodes without neighbours are dealt out, empty parts are filled."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["deal_to_lightest", "fill_empty_parts"]

Array = NDArray[Any]


def deal_to_lightest(part_weight: Array, weights: Array) -> Array:
    """Deal nodes out so that the parts' weights come as level as they can.

    Like water poured into a vessel of uneven ground: the parts below the level that the new
    nodes' weight reaches are filled up to it, one part after the other. No part ends more than one
    node above the level. O(P log P + K log P) for K nodes.

    Args:
        part_weight: Integer (P,), weight that each part has already.
        weights: Positive integer (K,), weights of the nodes to deal out.

    Returns:
        int32 (K,), the part of each node.
    """
    ground = np.sort(part_weight.astype(np.float64))
    water = float(weights.sum())
    levels = (water + np.cumsum(ground)) / np.arange(1, len(ground) + 1)
    # The level is that of the smallest set of lightest parts which does not reach the next part.
    level = levels[np.argmax(levels <= np.append(ground[1:], np.inf))]
    filled = np.cumsum(np.maximum(level - part_weight, 0))
    # A node belongs where its middle comes to lie when all are laid end to end. The last middle is
    # half a weight short of the end, which is more than rounding can be.
    middle = np.cumsum(weights) - weights / 2
    return np.searchsorted(filled, middle, side="right").astype(np.int32)


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
