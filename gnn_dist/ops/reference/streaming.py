"""Streaming partitioners' passes, node by node in plain Python.

They run on the CPU alone, since each step depends on the one before: nothing here is registered for
other devices, it is the oracle of the tests. Arguments are those of the operators in
`csrc/vertex_stream.cpp`; the passes over edges are in `clustering.py`.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["add_pins", "stream_nodes"]

LDG = 0
MOST_PINS = 255  # a count that has reached this is never lowered


@dataclass
class _Loads:
    """What parts hold, and their limits, which rise while parts fill (see `vertex_stream.cpp`)."""

    loads: list[list[int]]
    limits: list[list[int]]
    targets: list[list[float]]
    rule: int
    total: list[int] | None
    seen: list[int] = field(default_factory=list)
    now: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [0] * len(self.limits[0])
        self.now = [[float(x) for x in row] for row in self.limits]

    def add(self, part: int, weight: list[int], sign: int) -> None:
        for k, w in enumerate(weight):
            self.loads[part][k] += sign * w

    def see(self, weight: list[int]) -> None:
        if self.total is None:
            return
        for k, w in enumerate(weight):
            if self.total[k]:
                self.seen[k] += w
        shares = [
            float(s) / float(t) if t else 0.0 for s, t in zip(self.seen, self.total, strict=True)
        ]
        for q, (limits, targets) in enumerate(zip(self.limits, self.targets, strict=True)):
            filled = zip(self.loads[q], shares, targets, strict=True)
            level = max(1.0, min([1e30, *(float(a) / (s * t) for a, s, t in filled if s > 0)]))
            bounds = zip(limits, shares, targets, strict=True)
            self.now[q] = [min(float(a), level * s * t + (float(a) - t)) for a, s, t in bounds]

    def overflow(self, part: int, weight: list[int]) -> float:
        above = 0.0
        for k, w in enumerate(weight):
            room = self.now[part][k] - float(self.loads[part][k])
            over = float(w) - max(room, 0.0)
            if w > 0 and over > 0:
                above += over / self.targets[part][k]
        return above

    def fullness(self, part: int) -> float:
        whole = self.limits[part] if self.rule == LDG else self.targets[part]
        shares = [float(a) / float(b) for a, b in zip(self.loads[part], whole, strict=True)]
        return max([0.0, *shares])


def stream_nodes(
    parts: Tensor,
    loads: Tensor,
    pins: Tensor | None,
    indptr: Tensor,
    indices: Tensor,
    edge_weight: Tensor | None,
    order: Tensor | None,
    node_weight: Tensor,
    limits: Tensor,
    targets: Tensor,
    rule: int,
    penalty: float,
    counted: bool,
) -> None:
    """Place nodes one after the other: see `gnn_dist.ops.streaming.place_nodes`."""
    total = None if counted else node_weight.sum(0).tolist()
    held = _Loads(loads.tolist(), limits.tolist(), targets.tolist(), rule, total)
    for v in range(parts.numel()) if order is None else order.tolist():
        weight, old = node_weight[v].tolist(), int(parts[v])
        if old >= 0 and counted:
            held.add(old, weight, -1)
        held.see(weight)
        gain = (
            _neighbours(parts, indptr, indices, edge_weight, v)
            if pins is None
            else _shared_nets(pins, indptr, indices, v, old)
        )
        part = _best(held, gain, weight, old, penalty)
        parts[v] = part
        held.add(part, weight, 1)
        if pins is not None:
            for net in _nets(indptr, indices, v):
                pins[net, part] += int(pins[net, part]) < MOST_PINS
    loads.copy_(torch.tensor(held.loads))


def add_pins(pins: Tensor, parts: Tensor, indptr: Tensor, indices: Tensor) -> None:
    """Add the pins of all nodes that have a part: see `gnn_dist.ops.streaming.Placement`."""
    for v, part in enumerate(parts.tolist()):
        for net in _nets(indptr, indices, v) if part >= 0 else ():
            pins[net, part] += int(pins[net, part]) < MOST_PINS


def _nets(indptr: Tensor, indices: Tensor, v: int) -> Iterator[int]:
    """Yield what v is a pin of: itself, and its sources, each once where copies stand together."""
    yield v
    last = v
    for u in indices[int(indptr[v]) : int(indptr[v + 1])].tolist():
        if u not in (v, last):
            last = u
            yield u


def _shared_nets(pins: Tensor, indptr: Tensor, indices: Tensor, v: int, old: int) -> dict[int, int]:
    """Return the nets of v that have a pin in each part once v's own are taken out."""
    gain = dict.fromkeys(range(pins.shape[1]), 0)
    for net in _nets(indptr, indices, v):
        if old >= 0 and 0 < int(pins[net, old]) < MOST_PINS:
            pins[net, old] -= 1
        for part, count in enumerate(pins[net].tolist()):
            gain[part] += count > 0
    return gain


def _neighbours(
    parts: Tensor, indptr: Tensor, indices: Tensor, edge_weight: Tensor | None, v: int
) -> dict[int, int]:
    gain: dict[int, int] = {}
    for e in range(int(indptr[v]), int(indptr[v + 1])):
        u = int(indices[e])
        part = int(parts[u])
        if u != v and part >= 0:
            weight = 1 if edge_weight is None else int(edge_weight[e])
            gain[part] = gain.get(part, 0) + weight
    return gain


def _best(held: _Loads, gain: dict[int, int], weight: list[int], old: int, penalty: float) -> int:
    """Return the part: least overflow, best score, where it was, emptiest, lowest."""

    def rank(part: int) -> tuple[float, float, bool, float, int]:
        near = float(gain.get(part, 0))
        full = held.fullness(part)
        score = near * (1.0 - full) if held.rule == LDG else near - penalty * math.sqrt(full)
        return held.overflow(part, weight), -score, part != old, full, part

    return min(range(len(held.loads)), key=rank)
