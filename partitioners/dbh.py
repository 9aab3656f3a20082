"""DBH: vertex-cut by a hash of each edge's end of lower degree."""

from dataclasses import dataclass
from typing import ClassVar

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.graph import Graph
from gnn_dist.partitioners.options import check_integer
from gnn_dist.partitioners.vertex_cut import EdgeSource, open_stream

__all__ = ["Dbh"]


@dataclass(frozen=True)
class Dbh:
    """Assign each edge by a hash of its end of lower degree; of equal ends, of the lower id.

    Nodes of low degree have one clone beside those that hubs pull in, and only hubs are split. Each
    edge is assigned by itself, so this is the fastest, and the baseline. Balance is left to chance:
    a node with many self-loops keeps all of them in one part.

    Source: C. Xie, L. Yan, W. Li, Z. Zhang, "Distributed Power-law Graph Computing: Theoretical and
    Empirical Analysis", NIPS 2014. Two passes (degrees, assignment) of O(E) time;
    (4 + P / 8) bytes a node, and 4 an edge for the result.

    Attributes:
        seed: Chooses the hash.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> path = graph_from_edges([0, 1, 2], [1, 2, 3])
        >>> sum(Dbh()(path, 2).num_edges.tolist())
        3
    """

    name: ClassVar[str] = "dbh"
    cut: ClassVar[str] = "vertex"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**63 - 1))

    def __call__(self, graph: Graph | EdgeSource, num_parts: int) -> EdgePartition:
        """Return a vertex-cut partition."""
        stream = open_stream(graph, num_parts, imbalance=None, seed=self.seed)
        for chunk in stream.chunks():
            chunk.parts[:] = stream.assigner.dbh(chunk.src, chunk.dst)
        return stream.finish()
