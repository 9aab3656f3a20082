"""What partitioners that cluster a stream of edges have in common."""

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import BalanceOptions
from gnn_dist.partitioners.restream import finished, trivial_parts
from gnn_dist.partitioners.sources import Degrees, Source, degrees

__all__ = ["Clustered"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Clustered(BalanceOptions):
    """Counts degrees in one pass, which both the constraints and the clustering need."""

    name: ClassVar[str]

    def __call__(self, graph: Source, num_parts: int) -> Partition:
        """Return the partition."""
        counted = degrees(graph)
        return self.partition(graph, self.balance_of(counted, num_parts), counted)

    def partition(
        self, graph: Source, balance: Balance, counted: Degrees | None = None
    ) -> Partition:
        """Return the partition under any constraints."""
        trivial = trivial_parts(graph.num_nodes, balance.num_parts)
        if trivial is not None:
            return Partition(trivial, balance.num_parts)
        parts = self.assign(graph, balance, degrees(graph) if counted is None else counted)
        return finished(graph, parts, balance.num_parts, balance)

    def assign(self, graph: Source, balance: Balance, counted: Degrees) -> Array:
        """Return int32 (N,), the part of each node; 2 <= P < N."""
        raise NotImplementedError
