"""What local search on partitions knows of parts and nodes; `csrc/hypergraph.h` in plain Python."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from gnn_dist.ops.reference.words import row_keys, words

__all__ = ["Loads", "State", "node_draws", "rows_of"]

MOST_PINS = 300  # of a net along which searches go on
MOST_NETS = 1000  # of a node that searches go on to
AMPLE = 0.9  # of a limit, from which on parts are levelled


def node_draws(key: int, count: int) -> list[int]:
    """Return the first word of each node, as unsigned numbers."""
    drawn = words(row_keys(key, torch.arange(count)), 1)[:, 0]
    return [int(word) % 2**64 for word in drawn.tolist()]


def rows_of(ptr: Tensor, ids: Tensor) -> list[list[int]]:
    """Return the rows of a CSR structure."""
    return [ids[a:b].tolist() for a, b in pairwise(ptr.tolist())]


class Loads:
    """What parts weigh, and how much they may."""

    def __init__(self, node_weight: Tensor, limits: Tensor, part: list[int]) -> None:
        self.weight = node_weight.tolist()
        self.limits = limits.tolist()
        num_parts, num_weights = limits.shape
        self.load = [[0] * num_weights for _ in range(num_parts)]
        self.size = [0] * num_parts
        for v, p in enumerate(part):
            self.size[p] += 1
            for k, w in enumerate(self.weight[v]):
                self.load[p][k] += w
        totals = [sum(row[k] for row in self.load) for k in range(num_weights)]
        self.scale = [num_parts / total if total else 0.0 for total in totals]

    def fits(self, v: int, p: int) -> bool:
        """Say whether part p keeps within its limits with v in it as well."""
        return all(
            w == 0 or load + w <= most
            for w, load, most in zip(self.weight[v], self.load[p], self.limits[p], strict=True)
        )

    def fit_swapped(self, v: int, w: int, from_: int, to: int) -> bool:
        """Say whether both parts do when v goes from `from_` to `to` and w comes back."""
        for k, (a, b) in enumerate(zip(self.weight[v], self.weight[w], strict=True)):
            if a > b and self.load[to][k] + (a - b) > self.limits[to][k]:
                return False
            if a < b and self.load[from_][k] - (a - b) > self.limits[from_][k]:
                return False
        return True

    def _after(self, p: int, v: int | None, sign: int) -> list[int]:
        if v is None:
            return self.load[p]
        return [x + sign * w for x, w in zip(self.load[p], self.weight[v], strict=True)]

    def over(self, p: int, v: int | None = None, sign: int = 0) -> float:
        """Return how far a part is above its limits, in fair shares."""
        total = 0.0
        loads = self._after(p, v, sign)
        for load, most, scale in zip(loads, self.limits[p], self.scale, strict=True):
            if load > most:
                total += (load - most) * scale
        return total

    def _square(self, p: int, v: int | None = None, sign: int = 0) -> float:
        total = 0.0
        for load, most in zip(self._after(p, v, sign), self.limits[p], strict=True):
            above = load / max(1, most) - AMPLE
            if above > 0:
                total += above * above
        return total

    def relief(self, v: int, from_: int, to: int, level: bool) -> float:
        """Return by how much all parts come nearer to their limits if v moves."""
        measure = self._square if level else self.over
        left = measure(from_) - measure(from_, v, -1)
        return left + (measure(to) - measure(to, v, 1))

    def move(self, v: int, from_: int, to: int) -> None:
        """Move v."""
        self.load[from_] = self._after(from_, v, -1)
        self.load[to] = self._after(to, v, 1)
        self.size[from_] -= 1
        self.size[to] += 1

    def total_over(self) -> float:
        """Return how far all parts together are above their limits."""
        total = 0.0
        for p in range(len(self.load)):
            total += self.over(p)
        return total


class State:
    """An assignment, and the gain of each move, counted anew each time."""

    def __init__(self, graph: tuple[Tensor, ...], loads: Loads, part: list[int]) -> None:
        net_ptr, nets, pin_ptr, pins, net_weight = graph
        self.nets = rows_of(net_ptr, nets)
        self.pins = rows_of(pin_ptr, pins)
        self.net_weight = net_weight.tolist()
        self.loads = loads
        self.part = part
        self.num_parts = len(loads.load)

    def _count(self, net: int, p: int) -> int:
        return sum(self.part[pin] == p for pin in self.pins[net])

    def reach(self, v: int, p: int) -> int:
        """Return the weight of v's nets that touch part p."""
        return sum(self.net_weight[net] for net in self.nets[v] if self._count(net, p))

    def gain(self, v: int, to: int) -> int:
        """Return by how much connectivity falls if v moves."""
        gain = 0
        for net in self.nets[v]:
            gain += self.net_weight[net] * (self._count(net, self.part[v]) == 1)
            gain -= self.net_weight[net] * (self._count(net, to) == 0)
        return gain

    def others(self, v: int) -> Iterator[int]:
        """Return all parts but the one of v."""
        return (p for p in range(self.num_parts) if p != self.part[v])

    def best(self, v: int) -> tuple[int, int] | None:
        """Return the gain of the best move of v that fits, and where it goes."""
        if self.loads.size[self.part[v]] < 2:
            return None
        fitting = [p for p in self.others(v) if self.loads.fits(v, p)]
        if not fitting:
            return None
        to = max(fitting, key=lambda p: (self.reach(v, p), -p))
        return self.gain(v, to), to

    def move(self, v: int, to: int) -> list[int]:
        """Move v; return the nodes whose gains changed, along small nets, to light nodes."""
        from_, near = self.part[v], []
        for net in self.nets[v]:
            left, there = self._count(net, from_) - 1, self._count(net, to) + 1
            if (left <= 1 or there <= 2) and len(self.pins[net]) <= MOST_PINS:
                near += [pin for pin in self.pins[net] if pin != v]
        self.loads.move(v, from_, to)
        self.part[v] = to
        return [pin for pin in dict.fromkeys(near) if len(self.nets[pin]) <= MOST_NETS]

    def connectivity(self) -> int:
        """Return the sum over nets of weight times parts."""
        return sum(
            weight * len({self.part[pin] for pin in pins})
            for weight, pins in zip(self.net_weight, self.pins, strict=True)
        )
