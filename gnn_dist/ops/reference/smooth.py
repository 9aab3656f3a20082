"""A pass of local search on a smoothed connectivity, step by step as in `csrc`."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.part_state import Loads

__all__ = ["smooth_pass"]

Array = NDArray[np.int64]

MANY = 255  # counts that reach it stay
LOOKED = 256  # proposals that wait, of which a swap is looked for among the last


def _fake_smooth(*arguments: Tensor) -> tuple[Tensor, int]:
    return torch.empty_like(arguments[4]), 0


@operator(_fake_smooth)
def smooth_pass(
    indptr: Tensor,
    indices: Tensor,
    node_weight: Tensor,
    limits: Tensor,
    assignment: Tensor,
    table: Tensor,
    batch: int,
) -> tuple[Tensor, int]:
    """Let every node once go to the part where a smoothed connectivity is least.

    Nets are those of the structure's nodes: the net of u holds u and all rows that list u. Batches
    of nodes choose at the same time, then move one after the other.

    Args:
        indptr: int64 (N + 1,).
        indices: int32 (nnz,), ascending within rows.
        node_weight: int64 (N, K), not negative.
        limits: int64 (P, K).
        assignment: int32 (N,).
        table: float32 (256,), what a pin costs that comes to c others of its net in a part, or
            (0,), to move nothing.
        batch: Nodes that choose at the same time.

    Returns:
        int32 (N,), and the connectivity of `assignment`.

    Raises:
        IndexError: An offset, an index or a part is out of range.
        ValueError: Arguments do not fit each other, or a weight is negative.
    """
    part, num_parts = assignment.tolist(), limits.size(0)
    offsets, columns = indptr.tolist(), indices.tolist()
    nets = [
        list(dict.fromkeys([v, *columns[offsets[v] : offsets[v + 1]]])) for v in range(len(part))
    ]
    count = np.zeros((len(part), num_parts), np.int64)

    def change(v: int, p: int, sign: int) -> None:
        rows = np.array(nets[v])
        count[rows, p] += np.where(count[rows, p] == MANY, 0, sign)

    for v, p in enumerate(part):
        change(v, p, 1)
    connectivity = int((count > 0).sum())
    if table.numel():
        loads = Loads(node_weight, limits, part)
        costs = table.numpy()
        for begin in range(0, len(part), batch):
            proposals = _propose(nets, part, count, costs, range(begin, begin + batch))
            _apply(sorted(proposals), part, loads, change)
    return assignment.new_tensor(part), connectivity


def _propose(
    nets: list[list[int]],
    part: list[int],
    count: Array,
    table: NDArray[np.float32],
    nodes: range,
) -> Iterator[tuple[float, int, int]]:
    """Yield (-gain, node, part) of each node that would rather be elsewhere."""
    for v in nodes[: max(0, len(part) - nodes.start)]:
        own = part[v]
        cost = np.zeros(count.shape[1], np.float32)
        for net in nets[v]:
            here = count[net, own]
            cost += table[count[net]]
            if 0 < here < MANY:
                cost[own] += table[here - 1] - table[here]
        best = int(cost.argmin())
        if cost[best] < cost[own]:
            yield -float(cost[own] - cost[best]), v, best


def _apply(
    proposals: list[tuple[float, int, int]],
    part: list[int],
    loads: Loads,
    change: Callable[[int, int, int], None],
) -> None:
    """Make the moves that fit, and those that fit with one in the opposite direction."""

    def move(v: int, to: int) -> None:
        change(v, part[v], -1)
        loads.move(v, part[v], to)
        part[v] = to
        change(v, to, 1)

    waiting: list[tuple[int, int]] = []
    for _, v, to in proposals:
        from_ = part[v]
        if loads.size[from_] > 1 and loads.fits(v, to):
            move(v, to)
            continue
        for other in reversed(waiting[-LOOKED:]):
            if (part[other[0]], other[1]) != (to, from_):
                continue
            if loads.fit_swapped(v, other[0], from_, to):
                waiting.remove(other)
                move(v, to)
                move(*other)
                break
        else:
            waiting.append((v, to))
