"""Assigning the edges of a stream to parts, one after the other: to be read, not to be fast.

Sets of parts are bits of rows of int64 words, part p the bit p % 64 of word p // 64.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.words import GOLDEN, row_keys, words

__all__ = [
    "EdgeState",
    "choose_roots",
    "count_ends",
    "dbh_edges",
    "hdrf_edges",
    "libra_edges",
    "mark_clones",
    "two_phase_edges",
]

MASK = 2**64 - 1
MOST_INT32 = 2**31 - 1
ROOT_WEIGHTS = (1.0, 1.0, 0.0625)  # of roots, roots that train, and clones that send to them


def _nothing(*_: object) -> None:
    return None


class EdgeState:
    """What earlier edges have left: clones, loads, and which parts are still open.

    Attributes:
        parts: int32 (e,), to be filled in.
        clones: int64 (N, W), the parts that hold each node.
        loads: int64 (P,), edges of each part.
        limit: The most edges that a part may have.
    """

    def __init__(self, parts: Tensor, clones: Tensor, loads: Tensor, limit: int) -> None:
        self.parts, self.clones, self.loads, self.limit = parts, clones, loads, limit
        self.load = loads.tolist()
        self.num_parts = len(self.load)
        self.ring = 64
        while self.ring < 64 * clones.size(1):
            self.ring *= 2

    def of(self, node: int) -> set[int]:
        """Return the open parts that hold a node."""
        row = self.clones[node].tolist()
        return {p for p in self.open() if row[p // 64] >> (p % 64) & 1}

    def open(self) -> set[int]:
        """Return the parts that may be given more edges."""
        return {p for p in range(self.num_parts) if self.load[p] < self.limit}

    def rank(self, part: int, start: int) -> int:
        """Return what parts are compared by: their load, then their place in a circle."""
        return int(self.load[part]) * self.ring + (part - start) % self.ring

    def least(self, parts: set[int], start: int) -> int:
        """Return the part of lowest rank."""
        return min(parts, key=lambda p: self.rank(p, start))

    def assign(self, i: int, ends: tuple[int, int], part: int) -> None:
        """Enter the part of edge i."""
        self.parts[i] = part
        self.load[part] += 1
        self.loads[part] += 1
        for node in ends:
            _add(self.clones, node, part)


def _add(clones: Tensor, node: int, part: int) -> None:
    bit = 1 << (part % 64)
    clones[node, part // 64] |= bit - 2**64 if bit >= 2**63 else bit


def _edges(src: Tensor, dst: Tensor) -> Iterator[tuple[int, tuple[int, int]]]:
    return enumerate(zip(src.tolist(), dst.tolist(), strict=True))


def _draws(key: int, first: int, num: int) -> list[int]:
    """Return the words, as unsigned numbers, of edges first, first + 1, ... of a stream."""
    offset = (first * GOLDEN + 2**63) % 2**64 - 2**63
    keys = torch.tensor([key]) + offset
    return [w & MASK for w in words(keys, num)[0].tolist()] if num else []


@operator(_nothing)
def count_ends(degree: Tensor, src: Tensor, dst: Tensor) -> None:
    """Add to `degree` how many ends of edges each node is; a self-loop has two.

    Args:
        degree: int32 (N,), which stays at its largest value rather than overflow.
        src: int32 or int64 (e,).
        dst: Like `src`.
    """
    ends = torch.cat([src, dst]).long()
    total = degree.long() + torch.bincount(ends, minlength=degree.numel())
    degree.copy_(total.clamp(max=MOST_INT32))


@operator(_nothing)
def mark_clones(clones: Tensor, parts: Tensor, src: Tensor, dst: Tensor, num_parts: int) -> None:
    """Enter the part of each edge for both of its ends.

    Args:
        clones: int64 (N, ceil(P / 64)).
        parts: int32 (e,), in 0..P-1.
        src: int32 or int64 (e,).
        dst: Like `src`.
        num_parts: P.
    """
    for i, ends in _edges(src, dst):
        for node in ends:
            _add(clones, node, int(parts[i]))


@operator(_nothing)
def dbh_edges(
    parts: Tensor, src: Tensor, dst: Tensor, degree: Tensor, num_parts: int, key: int
) -> None:
    """Assign each edge by a hash of its end of lower degree; of equal ends, that of lower id.

    Args:
        parts: int32 (e,), to be filled in.
        src: int32 or int64 (e,).
        dst: Like `src`.
        degree: int32 (N,).
        num_parts: P.
        key: Chooses the hash.
    """
    for i, (u, v) in _edges(src, dst):
        low = min((u, v), key=lambda node: (int(degree[node]), node))
        parts[i] = (int(row_keys(key, torch.tensor([low]))) & MASK) * num_parts >> 64


@operator(_nothing)
def libra_edges(
    parts: Tensor,
    clones: Tensor,
    loads: Tensor,
    src: Tensor,
    dst: Tensor,
    degree: Tensor,
    limit: int,
    key: int,
    first: int,
) -> None:
    """Assign each edge to the least loaded part that holds both its ends, one, or none.

    If there are parts of either end but no common one, those of the end of lower degree count.

    Args:
        parts: int32 (e,), to be filled in.
        clones: int64 (N, ceil(P / 64)), the parts that hold each node.
        loads: int64 (P,), edges of each part.
        src: int32 or int64 (e,).
        dst: Like `src`.
        degree: int32 (N,).
        limit: The most edges that a part may have.
        key: What ties are broken by, with the edge's number.
        first: Number of the first edge in the stream.
    """
    state = EdgeState(parts, clones, loads, limit)
    draws = _draws(key, first, src.numel())
    for i, (u, v) in _edges(src, dst):
        of_u, of_v = state.of(u), state.of(v)
        among = of_u & of_v
        if not among and of_u and of_v:
            u_is_lower = (int(degree[u]), 0) < (int(degree[v]), draws[i] >> 63)
            among = of_u if u_is_lower else of_v
        among = among or of_u or of_v or state.open()
        state.assign(i, (u, v), state.least(among, draws[i] % state.ring))


@operator(_nothing)
def hdrf_edges(
    parts: Tensor,
    clones: Tensor,
    loads: Tensor,
    src: Tensor,
    dst: Tensor,
    degree: Tensor,
    balance_weight: float,
    limit: int,
    key: int,
    first: int,
) -> None:
    """Assign each edge to the part of highest score: clones kept, and room.

    A clone that is there already counts 2 minus its node's share of the two degrees. Room is
    (most - load) / (1 + most - least), times `balance_weight`. Other arguments are as of
    `libra_edges`.
    """
    state = EdgeState(parts, clones, loads, limit)
    draws = _draws(key, first, src.numel())
    for i, (u, v) in _edges(src, dst):
        total = max(1.0, float(degree[u]) + float(degree[v]))
        gains = [1 + (1 - float(degree[node]) / total) for node in (u, v)]
        held = state.of(u), state.of(v)
        most, least = float(max(state.load)), float(min(state.load))

        def score(
            part: int,
            gains: list[float] = gains,
            held: tuple[set[int], set[int]] = held,
            most: float = most,
            spread: float = 1 + (most - least),
        ) -> float:
            kept = (gains[0] if part in held[0] else 0) + (gains[1] if part in held[1] else 0)
            return kept + balance_weight * ((most - float(state.load[part])) / spread)

        start = draws[i] % state.ring
        best = min(state.open(), key=lambda p: (-score(p), state.rank(p, start)))
        state.assign(i, (u, v), best)


@operator(_nothing)
def two_phase_edges(
    parts: Tensor,
    clones: Tensor,
    loads: Tensor,
    src: Tensor,
    dst: Tensor,
    homes: Tensor,
    limit: int,
    rest: bool,
    key: int,
    first: int,
) -> None:
    """Assign edges to the parts of their ends' clusters.

    Without `rest`: edges both of whose clusters have one part that is not full go there, all others
    get -1. With `rest`: those that have -1 go to one of the two parts, by clones that are there and
    the clusters' volumes; where both are full, to the least loaded part that holds both ends, or
    one, or none.

    Args:
        parts: int32 (e,), filled in, and read with `rest`.
        clones: As of `libra_edges`; so are the others that are not named here.
        loads: int64 (P,).
        src: int32 or int64 (e,).
        dst: Like `src`.
        homes: int64 (N, 2), the volume of each node's cluster; and two int32, its part and the
            node's degree.
        limit: The most edges that a part may have.
        rest: Which of the two.
        key: What ties are broken by.
        first: Number of the first edge in the stream.
    """
    state = EdgeState(parts, clones, loads, limit)
    draws = _draws(key, first, src.numel())
    volume, (part_of, degree) = homes[:, 0], homes.view(torch.int32)[:, 2:].T
    for i, (u, v) in _edges(src, dst):
        near = int(part_of[u]), int(part_of[v])
        if not rest:
            if near[0] == near[1] and near[0] in state.open():
                state.assign(i, (u, v), near[0])
            else:
                parts[i] = -1
            continue
        if int(parts[i]) >= 0:
            continue
        held = state.of(u), state.of(v)
        among = [p for p in near if p in state.open()]
        if among:
            scores = [_home_score(p, (u, v), held, near, degree, volume) for p in among]
            keys = [(-s, state.load[p]) for s, p in zip(scores, among, strict=True)]
            part = among[keys.index(min(keys))]
        else:
            anywhere = held[0] & held[1] or held[0] | held[1] or state.open()
            part = state.least(anywhere, draws[i] % state.ring)
        state.assign(i, (u, v), part)


def _home_score(
    part: int,
    ends: tuple[int, int],
    held: tuple[set[int], set[int]],
    near: tuple[int, int],
    degree: Tensor,
    volume: Tensor,
) -> float:
    degrees = max(1.0, sum(float(degree[node]) for node in ends))
    volumes = max(1.0, sum(float(volume[node]) for node in ends))
    score = 0.0
    for node, parts in zip(ends, held, strict=True):
        if part in parts:
            score += 1 + (1 - float(degree[node]) / degrees)
    for node, home in zip(ends, near, strict=True):
        if home == part:
            score += float(volume[node]) / volumes
    return score


def _fake_roots(clones: Tensor, *_: object) -> Tensor:
    return clones.new_empty(clones.size(0), dtype=torch.int32)


@operator(_fake_roots)
def choose_roots(
    clones: Tensor, train: Tensor | None, num_parts: int, sweeps: int, key: int
) -> Tensor:
    """Choose one clone of each node as its root so that parts have equally much to do.

    Greedy: nodes with few clones first, each takes the clone that raises the sum over parts of the
    squares of three relative costs least: roots, roots that train, and (with less weight) other
    clones of roots. Further sweeps choose again. A node without clones comes last, may
    go anywhere, and gets a clone there.

    Args:
        clones: int64 (N, ceil(P / 64)).
        train: bool (N,), or None.
        num_parts: P.
        sweeps: How often to go through all nodes, at least once.
        key: What ties are broken by, with the node's number.

    Returns:
        int32 (N,), the root's part.
    """
    rows = clones.tolist()
    held = [[p for p in range(num_parts) if r[p // 64] >> (p % 64) & 1] for r in rows]
    mask = [False] * len(held) if train is None else train.tolist()
    costs = [(1, int(t), max(1, len(h)) - 1) for t, h in zip(mask, held, strict=True)]
    shares = [float(sum(c[k] for c in costs)) / num_parts for k in range(3)]
    scale = [w / (s * s) if s > 0 else 0.0 for w, s in zip(ROOT_WEIGHTS, shares, strict=True)]
    ring = 1
    while ring < num_parts:
        ring *= 2
    of = [[0, 0, 0] for _ in range(num_parts)]
    root = [0] * len(held)
    starts = (row_keys(key, torch.arange(len(held))) & (ring - 1)).tolist()

    def rise(part: int, cost: tuple[int, ...]) -> float:
        total = 0.0
        for k in range(3):
            total += cost[k] * (of[part][k] + cost[k] / 2) * scale[k]
        return total

    order = sorted(range(len(held)), key=lambda n: (len(held[n]) or num_parts + 1, n))
    for sweep in range(sweeps):
        for node in order:
            if sweep and len(held[node]) < 2:
                continue
            if sweep:
                of[root[node]] = [a - b for a, b in zip(of[root[node]], costs[node], strict=True)]
            among = [((p - starts[node]) % ring, p) for p in held[node] or range(num_parts)]
            root[node] = min((rise(p, costs[node]), place, p) for place, p in among)[2]
            of[root[node]] = [a + b for a, b in zip(of[root[node]], costs[node], strict=True)]
            _add(clones, node, root[node])
    return torch.tensor(root, dtype=torch.int32)
