"""What partitioners that take several constraints have in common."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.adjacency import internal_degree
from gnn_dist.partitioners.balance import (
    DEFAULT_BALANCE,
    Balance,
    Counted,
    check_shares,
    column_files,
    hub_notes,
    make_balance,
    parse_constraints,
    read_column,
)
from gnn_dist.partitioners.options import check_number
from gnn_dist.partitioners.refine import repair
from gnn_dist.partitioners.repair import fill_empty_parts

__all__ = ["BalanceOptions", "Balanced"]

Array = NDArray[Any]


@dataclass(frozen=True)
class BalanceOptions:
    """The options of every partitioner that takes constraints.

    Attributes:
        balance: What parts have in equal measure, separated by commas: `nodes`, `edges` (in-edges),
            `train`, `val`, `test` (nodes of the first split), or the path of a `.npy` file with
            one non-negative integer a node. A constraint may have an imbalance of its own:
            `nodes,edges:0.1`. `train` is left out where the graph has no masks.
        imbalance: How far above its target a part may lie: 0.05 is 5 per cent. A part may always
            be one node above it.
        part_weights: Shares of the parts, for ranks of different speed; equal by default.
    """

    balance: str = DEFAULT_BALANCE
    imbalance: float = 0.05
    part_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        imbalance = check_number("imbalance", self.imbalance, 0.0, 1000.0)
        object.__setattr__(self, "imbalance", imbalance)
        parse_constraints(self.balance, imbalance)
        if not isinstance(self.part_weights, list | tuple | np.ndarray):
            raise PartitionError(
                f"part_weights must be numbers, one for each part, got {self.part_weights!r}"
            )
        shares = tuple(check_number("part_weights", w, 0.0, 1e300) for w in self.part_weights)
        if shares and not all(share > 0 for share in shares):
            raise PartitionError(f"part_weights must be positive, got {list(shares)}")
        object.__setattr__(self, "part_weights", shares)

    def check(self, num_nodes: int, num_parts: int) -> None:
        """Check what can be checked without a graph.

        Raises:
            PartitionError: A file of weights or the number of shares does not fit.
        """
        check_shares(self.part_weights, num_parts)
        for path in column_files(self.balance):
            read_column(path, num_nodes)

    def balance_of(self, graph: Counted, num_parts: int) -> Balance:
        """Return the constraints on a graph.

        Raises:
            PartitionError: A constraint or the number of shares does not fit the graph.
        """
        return make_balance(graph, num_parts, self.balance, self.imbalance, self.part_weights)

    def partition(self, graph: Graph, balance: Balance) -> Partition:
        """Return a partition under any constraints, with the other options as they are."""
        raise NotImplementedError


@dataclass(frozen=True)
class Balanced(BalanceOptions):
    """What partitioners of a graph in memory under any constraints have in common.

    A subclass has a `name` and says how it assigns nodes; what is the same for all is done here:
    trivial numbers of parts, parts that the search left empty, and those it left above a limit.
    """

    name: ClassVar[str]

    def __call__(self, graph: Graph, num_parts: int) -> Partition:
        """Return a partition under the constraints of the options.

        Raises:
            PartitionError: A constraint does not fit the graph, or the search failed.
        """
        return self.partition(graph, self.balance_of(graph, num_parts))

    def partition(self, graph: Graph, balance: Balance) -> Partition:
        """Return a partition under any constraints, with the other options as they are.

        Raises:
            PartitionError: The search failed.
        """
        num_parts = balance.num_parts
        if num_parts == 1:
            return Partition(np.zeros(graph.num_nodes, np.int32), 1)
        if num_parts == graph.num_nodes:
            return Partition(np.arange(num_parts, dtype=np.int32), num_parts)
        assignment, notes = self.assign(graph, balance)
        notes = (*hub_notes(balance), *notes)
        num_empty = num_parts - len(np.unique(assignment))
        if num_empty:
            cost = internal_degree(graph, assignment)
            assignment, moved = fill_empty_parts(assignment, num_parts, cost)
            notes += (
                f"{self.name} left {num_empty} of {num_parts} parts empty: {moved} nodes of the "
                "largest parts were moved there",
            )
        if not balance.is_met(assignment):
            assignment = repair(graph, assignment, balance)
        return Partition(assignment, num_parts, notes=notes)

    def assign(self, graph: Graph, balance: Balance) -> tuple[Array, tuple[str, ...]]:
        """Return int32 (N,), the part of each node, and notes; 2 <= P < N."""
        raise NotImplementedError
