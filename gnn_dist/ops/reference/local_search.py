"""Local search on partitions of hypergraphs, step by step as in `csrc`.

All decisions are on integers, or on float64 and float32 with each operation rounded by itself, so
that every implementation makes the same moves.
"""

import heapq

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.part_state import MOST_PINS, Loads, State, node_draws
from gnn_dist.ops.reference.words import words

__all__ = ["local_search"]

LEAST_RELIEF = 1e-12
FEW = 2000  # nodes, up to which searches may lose anything
LEAST_LOSS = 8  # the most that a search's first move may lose, where nodes have few nets


def _fake_search(*arguments: Tensor) -> Tensor:
    return torch.empty_like(arguments[7])


@operator(_fake_search)
def local_search(
    net_ptr: Tensor,
    nets: Tensor,
    pin_ptr: Tensor,
    pins: Tensor,
    net_weight: Tensor,
    node_weight: Tensor,
    limits: Tensor,
    assignment: Tensor,
    patience: int,
    rounds: int,
    key: int,
) -> Tensor:
    """Move nodes until parts keep within their limits, then as long as connectivity falls.

    Args:
        net_ptr: int64 (N + 1,), offsets of the nodes' rows.
        nets: int32 (pins,), the nets of each node, none twice.
        pin_ptr: int64 (M + 1,), offsets of the nets' rows.
        pins: int32 (pins,), the nodes of each net: the transpose.
        net_weight: int64 (M,).
        node_weight: int64 (N, K), not negative.
        limits: int64 (P, K), the most that each part may hold.
        assignment: int32 (N,), the part of each node.
        patience: Moves after its best state at which a search gives up.
        rounds: How often to search from all nodes at most.
        key: What equal moves are ordered by.

    Returns:
        int32 (N,). Parts above their limits together are so by no more than at first; the
        connectivity is at most that of the first state in which they keep within them.

    Raises:
        IndexError: An offset, a net, a pin or a part is out of range.
        ValueError: Arguments do not fit each other, or a weight is negative.
    """
    part = assignment.tolist()
    loads = Loads(node_weight, limits, part)
    state = State((net_ptr, nets, pin_ptr, pins, net_weight), loads, part)
    _rebalance(state, node_draws(key, len(part)))
    round_keys = words(torch.tensor([key]), rounds)[0].tolist()
    fresh = set(range(len(part)))
    for round_key in round_keys:
        before = state.connectivity()
        fresh = _round(state, node_draws(round_key, len(part)), patience, fresh)
        after = state.connectivity()
        if (before - after) * 1000 <= after:
            break
    return assignment.new_tensor(part)


def _rebalance(state: State, draws: list[int]) -> None:
    before, moves = state.loads.total_over(), list[tuple[int, int]]()
    _relieve(state, draws, moves, level=False)
    if state.loads.total_over() > 0:
        _relieve(state, draws, moves, level=True)
    if state.loads.total_over() > before:
        for v, from_ in reversed(moves):
            state.move(v, from_)


def _relieve(state: State, draws: list[int], moves: list[tuple[int, int]], *, level: bool) -> None:
    heap: list[tuple[float, int, int, int]] = []

    def push(v: int) -> None:
        found = _cheapest(state, v, level)
        if found:
            heapq.heappush(heap, (found[0], -(draws[v] % 2**32), v, found[1]))

    for v in range(len(state.part)):
        push(v)
    while heap and state.loads.total_over() > 0:
        price, _, v, _ = heapq.heappop(heap)
        found = _cheapest(state, v, level)
        if found and found[0] > price:
            push(v)
        elif found:
            moves.append((v, state.part[v]))
            state.move(v, found[1])
            if level:
                push(v)


def _cheapest(state: State, v: int, level: bool) -> tuple[float, int] | None:
    """Return the least loss of connectivity for what it relieves, and where to."""
    from_ = state.part[v]
    if state.loads.size[from_] < 2 or (not level and state.loads.over(from_) <= 0):
        return None
    best = None
    for p in state.others(v):
        relief = state.loads.relief(v, from_, p, level)
        if relief > LEAST_RELIEF:
            loss = -state.gain(v, p)
            price = loss / relief if loss > 0 else loss * relief
            if best is None or price < best[0]:
                best = (price, p)
    return best


def _round(state: State, draws: list[int], patience: int, fresh: set[int]) -> set[int]:
    """Search from the fresh nodes of the boundary; return those near which something moved."""
    moved: set[int] = set()
    tried: set[int] = set()
    seeds = [
        (draws[v] % 2**32, v)
        for v in sorted(fresh)
        if any(state.reach(v, p) for p in state.others(v))
    ]
    for _, v in sorted(seeds):
        if v not in moved and v not in tried:
            found = state.best(v)
            if found and found[0] >= -_most_loss(state):
                _search(state, v, draws, patience, (moved, tried))
    return {
        pin for v in moved for net in state.nets[v] for pin in state.pins[net]
        if len(state.pins[net]) <= MOST_PINS
    }  # fmt: skip


def _most_loss(state: State) -> int:
    """Return how much the first move of a search may lose."""
    if len(state.part) <= FEW:
        return 2**61
    total = sum(w * len(pins) for w, pins in zip(state.net_weight, state.pins, strict=True))
    most: int = max(LEAST_LOSS, total // max(1, len(state.part)) // 2)
    return most


def _search(
    state: State, seed: int, draws: list[int], patience: int, marks: tuple[set[int], set[int]]
) -> None:
    """Move the best node near a seed again and again, then go back to the best state."""
    moved, tried = marks
    heap: list[tuple[int, int, int, int]] = []

    def push(v: int) -> None:
        found = state.best(v)
        if found:
            heapq.heappush(heap, (-found[0], -(draws[v] % 2**32), v, found[1]))

    push(seed)
    moves: list[tuple[int, int]] = []
    total = best = since = kept = 0
    while heap and since < patience and total >= best - 2 * _most_loss(state):
        gain, _, v, to = heapq.heappop(heap)
        found = None if v in moved else state.best(v)
        if found is None:
            continue
        if found != (-gain, to):
            push(v)
            continue
        moves.append((v, state.part[v]))
        moved.add(v)
        for pin in state.move(v, to):
            if pin not in moved:
                push(pin)
        total += found[0]
        since += 1
        if total > best:
            best, since, kept = total, 0, len(moves)
    while len(moves) > kept:
        v, from_ = moves.pop()
        state.move(v, from_)
        moved.remove(v)
        tried.add(v)
