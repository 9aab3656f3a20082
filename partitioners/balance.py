"""What parts should share equally: nodes, edges, training nodes."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError

__all__ = ["Balance", "Weighed", "make_balance"]

Array = NDArray[Any]

KNOWN = ("nodes", "edges", "train", "val", "test")


class Weighed(Protocol):
    """What weights are made from: a `Graph`, or its like on disk."""

    @property
    def num_nodes(self) -> int:
        """N."""

    @property
    def in_degree(self) -> Array:
        """int64 (N,)."""


@dataclass(frozen=True, eq=False)
class Balance:
    """Weights of nodes, and what part of them each part may hold.

    Attributes:
        names: What each of the K constraints counts.
        weights: int64 (N, K).
        targets: float64 (P,), each part's share, adding up to one.
        imbalance: float64 (K,), how far above its share a part may be: 0.05 is 5 per cent.
    """

    names: tuple[str, ...]
    weights: Array
    targets: Array
    imbalance: Array

    @cached_property
    def limits(self) -> Array:
        """int64 (P, K); a part may be above its share by the heaviest node in any case."""
        total, heaviest = self.weights.sum(0), self.weights.max(0, initial=0)
        shares = self.targets[:, None] * total
        limits = np.maximum(
            np.floor(shares * (1 + self.imbalance)), np.ceil(shares - 1e-9 * total) + heaviest
        )
        whole: Array = limits.astype(np.int64)
        return whole


def make_balance(
    graph: Weighed,
    num_parts: int,
    balance: str = "nodes,edges,train",
    imbalance: float = 0.05,
    part_weights: tuple[float, ...] = (),
) -> Balance:
    """Return the balance that options ask for.

    Constraints that count nothing in this graph are left out, unless none would be left.

    Raises:
        PartitionError: A name is not known, or `part_weights` does not fit.
    """
    columns = {name: _column(graph, name) for name in balance.split(",")}
    counted = {name: c for name, c in columns.items() if c is not None and c.any()}
    counted = counted or {"nodes": np.ones(graph.num_nodes, np.int64)}
    if part_weights and (len(part_weights) != num_parts or min(part_weights) <= 0):
        raise PartitionError(
            f"part_weights must be {num_parts} positive numbers, got {part_weights}"
        )
    targets = np.array(part_weights or (1.0,) * num_parts)
    return Balance(
        tuple(counted),
        np.ascontiguousarray(np.stack(list(counted.values()), 1)),
        targets / targets.sum(),
        np.full(len(counted), imbalance),
    )


def _column(graph: Weighed, name: str) -> Array | None:
    if name not in KNOWN:
        raise PartitionError(f"balance must be a list of {', '.join(KNOWN)}, got {name!r}")
    if name == "nodes":
        return np.ones(graph.num_nodes, np.int64)
    if name == "edges":
        return np.asarray(graph.in_degree, np.int64)
    mask = getattr(graph, f"{name}_mask", None)
    if mask is None:
        return None
    column: Array = (mask if mask.ndim == 1 else mask[:, 0]).astype(np.int64)
    return column
