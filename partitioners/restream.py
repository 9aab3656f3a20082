"""Vertex streams: nodes placed one after the other, in several passes over the rows of a graph.

What `ldg` and `fennel` share: options, the plan of passes, and what happens to parts left empty.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.partition import Partition
from gnn_dist.partitioners.adjacency import internal_degree
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import BalanceOptions
from gnn_dist.partitioners.options import check_choice, check_integer
from gnn_dist.partitioners.repair import fill_empty_parts
from gnn_dist.partitioners.sources import Source, rows_of

if TYPE_CHECKING:
    from gnn_dist.ops.streaming import Placement, Rows, Shares

__all__ = ["Restream", "finished", "relieved", "settle", "shares_of", "trivial_parts"]

Array = NDArray[Any]

OBJECTIVES = ("auto", "halo", "neighbours")
ORDERS = ("id", "random")
MOST_PIN_BYTES = 4 << 30  # where `auto` goes from the halo to neighbours
MOST_PASSES = 1000
RELIEFS = 3  # what leaves a part for one constraint may fill another in a second
SETTLE_PENALTY = 1e-3  # less than any gain: of parts of equal gain, the emptier is chosen


@dataclass(frozen=True)
class Restream(BalanceOptions):
    """Options of vertex streams, and the passes.

    The first passes fill the parts from empty ("restreaming": J. Nishimura, J. Ugander,
    "Restreaming graph partitioning: simple versatile algorithms for advanced balancing", KDD 2013),
    each with the assignment of the pass before as the guess of where later nodes will be. The last
    ones, `passes // 2` of them, start from the whole assignment: a node is taken out and put back
    where it scores best, within the limits.

    Attributes:
        seed: Seeds `order="random"`.
        passes: How often the graph is read.
        objective: `neighbours`: a part scores by the node's sources there, as published. `halo`: by
            the halo rows that it saves, which takes N * P bytes. `auto`: `halo` where these are at
            most 4 GiB. With ldg in 8 parts, nodes and edges within 5 per cent, RF over random's was
            0.86 by halo and 0.91 by neighbours on an RMAT graph of scale 18 (5 passes); with
            fennel on an SBM of 2^18 nodes 0.51 and 0.54 (0.55 and 0.93 after one pass).
        order: `id`, or `random`, which reads rows here and there: for graphs in memory.
    """

    name: ClassVar[str]
    seed: int = 0
    passes: int = 5
    objective: str = "auto"
    order: str = "id"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("order", self.order, ORDERS)
        checked = {
            "seed": check_integer("seed", self.seed, 0, 2**63 - 1),
            "passes": check_integer("passes", self.passes, 1, MOST_PASSES),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def __call__(self, graph: Source, num_parts: int) -> Partition:
        """Return the partition."""
        rows_of(graph, self.name)  # refuses what has no rows
        return self.partition(graph, self.balance_of(graph, num_parts))  # type: ignore[arg-type]

    def partition(self, graph: Source, balance: Balance) -> Partition:
        """Return the partition under any constraints."""
        raise NotImplementedError

    def run(self, source: Source, made: Balance, *, rule: str, penalty: float) -> Partition:
        """Return the partition that all passes lead to."""
        rows, num_parts = rows_of(source, rule), made.num_parts
        trivial = trivial_parts(source.num_nodes, num_parts)
        if trivial is not None:
            return Partition(trivial, num_parts)
        from gnn_dist.ops.streaming import Placement, place_nodes

        shares = shares_of(made)
        placement = Placement.empty(
            source.num_nodes, shares, with_pins=self.counts_pins(source.num_nodes, num_parts)
        )
        settling = self.passes // 2
        for _ in range(self.passes - settling):
            placement.loads[:] = 0
            place_nodes(
                placement,
                rows,
                shares,
                rule=rule,
                filling=True,
                penalty=penalty,
                order=self.visiting_order(source.num_nodes),
            )
        settle(placement, rows, shares, settling)
        return finished(source, placement.parts, num_parts, made)

    def counts_pins(self, num_nodes: int, num_parts: int) -> bool:
        """Return whether to score by halo rows."""
        if self.objective == "auto":
            return num_nodes * num_parts <= MOST_PIN_BYTES
        return self.objective == "halo"

    def visiting_order(self, num_nodes: int) -> Array | None:
        """Return the nodes in the order of a pass, or None for ascending ids."""
        if self.order == "id":
            return None
        return np.random.default_rng(self.seed).permutation(num_nodes)


def trivial_parts(num_nodes: int, num_parts: int) -> Array | None:
    """Return the assignment where there is nothing to choose: one part, or one for each node."""
    if num_parts == 1:
        return np.zeros(num_nodes, np.int32)
    return np.arange(num_parts, dtype=np.int32) if num_parts == num_nodes else None


def shares_of(balance: Balance) -> "Shares":
    """Return weights and limits as passes take them."""
    from gnn_dist.ops.streaming import Shares

    targets = balance.targets[:, None] * balance.weights.sum(0)
    least = np.finfo(np.float64).tiny  # a part may be due nothing of a column of zeros
    return Shares(
        np.ascontiguousarray(balance.weights),
        np.maximum(balance.limits, 1),
        np.ascontiguousarray(np.maximum(targets, least)),
    )


def settle(placement: "Placement", rows: "Rows", shares: "Shares", passes: int) -> None:
    """Move nodes to where they gain most, with all others in place, until no node moves."""
    from gnn_dist.ops.streaming import place_nodes

    for _ in range(passes):
        before = placement.parts.copy()
        place_nodes(placement, rows, shares, rule="fennel", filling=False, penalty=SETTLE_PENALTY)
        if np.array_equal(before, placement.parts):
            return


def relieved(parts: Array, shares: "Shares", degree: Array) -> Array:
    """Return an assignment from whose overfull parts nodes were moved, those of low degree first.

    Args:
        parts: int32 (N,).
        shares: Weights and limits.
        degree: int64 (N,).
    """
    from gnn_dist.ops.streaming import Placement, Rows, place_nodes

    placement = Placement.of(parts, shares, None)
    no_edges = Rows(np.zeros(len(parts) + 1, np.int64), np.zeros(0, np.int32))
    for _ in range(RELIEFS):
        overfull = np.any(placement.loads > shares.limits, axis=1)
        there = np.flatnonzero(overfull[placement.parts])
        if not len(there):
            break
        order = there[np.argsort(degree[there], kind="stable")]
        place_nodes(placement, no_edges, shares, rule="ldg", filling=False, order=order)
    return placement.parts


def finished(source: Source, parts: Array, num_parts: int, balance: Balance) -> Partition:
    """Return the partition, with no part empty, and with notes where limits could not be kept."""
    sizes = np.bincount(parts, minlength=num_parts)
    empty = int((sizes == 0).sum())
    notes: tuple[str, ...] = ()
    if empty:
        known = hasattr(source, "indptr")
        cost = internal_degree(source, parts) if known else np.zeros(len(parts))  # type: ignore[arg-type]
        parts, moved = fill_empty_parts(parts, num_parts, cost)
        notes = (f"{empty} of {num_parts} parts were left empty: {moved} nodes were moved there",)
    return Partition(parts, num_parts, notes=notes + _overfull(parts, balance))


def _overfull(parts: Array, balance: Balance) -> tuple[str, ...]:
    notes = []
    for k, name in enumerate(balance.names):
        load = np.bincount(parts, balance.weights[:, k], len(balance.targets))
        if (load > balance.limits[:, k]).any():
            ratio = float((load / (balance.targets * balance.weights[:, k].sum())).max())
            notes.append(f"the parts' {name} could not be balanced: up to {ratio:.2f} of a share")
    return tuple(notes)
