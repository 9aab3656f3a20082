"""Fennel: a vertex stream that weighs neighbours, or halo rows, against the fullness of parts."""

from dataclasses import dataclass
from typing import ClassVar

from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.options import check_number
from gnn_dist.partitioners.restream import Restream
from gnn_dist.partitioners.sources import Source

__all__ = ["Fennel"]

GAMMA = 1.5  # the paper's exponent of the cost of a part's size


@dataclass(frozen=True)
class Fennel(Restream):
    """Place each node where gain - penalty * sqrt(fullness) is greatest, within the limits.

    Source: C. Tsourakakis, C. Gkantsidis, B. Radunovic, M. Vojnovic, "FENNEL: streaming graph
    partitioning for massive scale graphs", WSDM 2014, with gamma = 3/2: alpha * gamma *
    sqrt(size) is `strength` * 3/2 * (E / 2N) * sqrt(fullness), where fullness is that of the
    fullest constraint. As objective, the connectivity of nets in place of neighbours is that of
    K. Eyubov, M. Fonseca Faraj, C. Schulz, "FREIGHT: fast streaming hypergraph partitioning",
    arXiv 2302.06259.

    O(passes * (E + N P)) time. Memory: 4 bytes a node for the parts, 8 for each constraint, P (a
    multiple of 8) for the objective `halo`; none for an edge, which are read in order.

    Attributes:
        strength: Penalty for fullness, 1 as published. Far less is better here, since limits that
            rise as nodes come keep parts even in every constraint.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], symmetrize=True)
        >>> Fennel()(graph, 2).assignment.tolist()
        [0, 0, 0, 1, 1, 1]
    """

    name: ClassVar[str] = "fennel"
    strength: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "strength", check_number("strength", self.strength, 0.0, 1e6))

    def partition(self, graph: Source, balance: Balance) -> Partition:
        """Return the partition."""
        mean_degree = graph.num_edges / max(1, graph.num_nodes)
        penalty = self.strength * GAMMA * mean_degree / 2
        return self.run(graph, balance, rule="fennel", penalty=penalty)
