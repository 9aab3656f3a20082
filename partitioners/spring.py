"""SPRING: clusters from a stream of edges in any order, merged and packed into parts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.clustered import Clustered
from gnn_dist.partitioners.clusters import Clusters, cluster_stream, merged
from gnn_dist.partitioners.options import check_integer, check_number
from gnn_dist.partitioners.restream import relieved, shares_of
from gnn_dist.partitioners.sources import Degrees, Source

if TYPE_CHECKING:
    from gnn_dist.ops.streaming import Rows

__all__ = ["Spring", "place_clusters"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Spring(Clustered):
    """Cluster edges as they come, merge clusters by rich neighbours, pack the largest first.

    Source: X. Huang et al., "SDT-GNN: Streaming-based Distributed Training Framework for Graph
    Neural Networks", arXiv 2404.02300. Changed: clusters and parts are limited in every
    constraint; merged clusters are looked at again; clusters are packed from the largest
    down, where the published order let a part have twice its share, and nodes of the lowest degree
    are moved out of parts that are still too full.

    O(passes * E + N log N) time. Memory: 48 bytes a node, 24 more for each constraint, 24 while
    merging; none for an edge. Needs one more pass to count degrees.

    Attributes:
        passes: How often edges are read for clustering.
        cluster_share: How much of a part's share a cluster may hold before merging.
        merged_share: The same after merging.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], symmetrize=True)
        >>> Spring(cluster_share=1.0, merged_share=1.0)(graph, 2).assignment.tolist()
        [0, 0, 0, 1, 1, 1]
    """

    name: ClassVar[str] = "spring"
    passes: int = 2
    cluster_share: float = 0.1
    merged_share: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = {
            "passes": check_integer("passes", self.passes, 1, 1000),
            "cluster_share": check_number("cluster_share", self.cluster_share, 0.0, 1.0),
            "merged_share": check_number("merged_share", self.merged_share, 0.0, 1.0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def assign(self, graph: Source, balance: Balance, counted: Degrees) -> Array:
        """Return the part of each node."""
        state = cluster_stream(
            graph, counted, balance, share=self.cluster_share, passes=self.passes, richest=True
        )
        clusters = merged(state, balance, share=self.merged_share)
        del state
        parts = place_clusters(clusters, balance)[clusters.of]
        return relieved(parts, shares_of(balance), counted.degree)


def place_clusters(clusters: Clusters, balance: Balance, rows: "Rows | None" = None) -> Array:
    """Place clusters from the largest down, each into the part where it is nearest to others.

    Without rows, into the emptiest part that has room.

    Returns:
        int32 (C,).
    """
    from gnn_dist.ops.streaming import Placement, Rows, place_nodes

    count = clusters.num_clusters
    if rows is None:
        rows = Rows(np.zeros(count + 1, np.int64), np.zeros(0, np.int32))
    whole = shares_of(balance)
    shares = whole._replace(node_weight=clusters.weights)
    size = (clusters.weights / whole.targets.sum(0)).max(1)
    order = np.argsort(-size, kind="stable")
    placement = Placement.empty(count, shares, with_pins=False)
    # Loads count as they are, not against rising limits: what is left last is small.
    place_nodes(placement, rows, shares, rule="ldg", filling=False, order=order)
    return placement.parts
