"""Linear deterministic greedy: a vertex stream that discounts gains by the fullness of parts."""

from dataclasses import dataclass
from typing import ClassVar

from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.restream import Restream
from gnn_dist.partitioners.sources import Source

__all__ = ["Ldg"]


@dataclass(frozen=True)
class Ldg(Restream):
    """Place each node where gain * (1 - fullness) is greatest, within the limits.

    Source: I. Stanton, G. Kliot, "Streaming graph partitioning for large distributed graphs",
    KDD 2012, section 4, with the fullest constraint for the size of a part.

    O(passes * (E + N P)) time. Memory: 4 bytes a node for the parts, 8 for each constraint, P (a
    multiple of 8) for the objective `halo`; none for an edge, which are read in order.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], symmetrize=True)
        >>> Ldg()(graph, 2).assignment.tolist()
        [0, 0, 0, 1, 1, 1]
    """

    name: ClassVar[str] = "ldg"

    def partition(self, graph: Source, balance: Balance) -> Partition:
        """Return the partition."""
        return self.run(graph, balance, rule="ldg", penalty=0.0)
