"""Clusters of nodes made from a stream of edges, and the graph whose nodes they are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.graph import INT32_LIMIT
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.sources import Degrees, Source, edges_of

if TYPE_CHECKING:
    from gnn_dist.ops.streaming import ClusterState, Rows

__all__ = ["Clusters", "cluster_graph", "cluster_stream", "merged"]

Array = NDArray[Any]

NO_LIMIT = 2**62


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which cluster each node is in.

    Attributes:
        of: int32 (N,), in 0..C - 1.
        weights: int64 (C, K), by constraint.
    """

    of: Array
    weights: Array

    @property
    def num_clusters(self) -> int:
        """C."""
        return len(self.weights)

    @classmethod
    def of_state(cls, state: "ClusterState") -> "Clusters":
        """Number the clusters that have members, in the order of their old numbers."""
        cluster, load = state.nodes["cluster"], state.nodes["load"]
        used = np.zeros(len(cluster), bool)
        used[cluster] = True
        new_number = np.cumsum(used, dtype=np.int32) - np.int32(1)
        return cls(new_number[cluster], np.ascontiguousarray(load[used, 1:]))

    def joined(self, number: Array, num_clusters: int) -> "Clusters":
        """Return clusters made of these: cluster c becomes part of `number[c]`, int32 (C,)."""
        weights = np.zeros((num_clusters, self.weights.shape[1]), np.int64)
        np.add.at(weights, number, self.weights)
        return Clusters(number[self.of], weights)

    def bundled(self, most: int, limit: Array) -> "Clusters":
        """Join the smallest clusters, neighbours in number, until no more than `most` are left.

        Bundles keep within a limit, int64 (K,), if they are not too many then; nodes without edges,
        each a cluster of its own, are what this is for.
        """
        excess = self.num_clusters - most
        if excess <= 0:
            return self
        size = (self.weights / np.maximum(limit, 1)).max(1)
        order = np.argsort(size, kind="stable")
        # Bundles of a mean size that takes the smaller clusters, up to half of `most` bundles.
        num_small = excess + max(1, most // 2)
        small = np.sort(order[:num_small])
        filled = np.cumsum(size[small] + 1e-12)
        bundle = (filled / filled[-1] * (num_small - excess) * (1 - 1e-9)).astype(np.int32)
        number = np.empty(self.num_clusters, np.int32)
        number[np.sort(order[num_small:])] = np.arange(self.num_clusters - num_small)
        number[small] = self.num_clusters - num_small + bundle
        kept, number_of_kept = np.unique(number, return_inverse=True)
        return self.joined(number_of_kept.astype(np.int32), len(kept))


def cluster_stream(
    source: Source,
    counted: Degrees,
    balance: Balance,
    *,
    share: float,
    passes: int,
    richest: bool = False,
) -> "ClusterState":
    """Cluster nodes by passes over the edges.

    Source: A. Hollocou, J. Maudet, T. Bonald, M. Lelarge, "A streaming algorithm for graph
    clustering", arXiv 1712.04337, with limits in every constraint.

    Args:
        source: Edges in any order.
        counted: Its degrees.
        balance: Constraints.
        share: How much of the smallest part's share a cluster may hold.
        passes: How often edges are read.
        richest: Whether to note each node's source of highest degree, for `merged`.
    """
    from gnn_dist.ops.streaming import ClusterState, cluster_edges

    state = ClusterState.single(counted.degree, balance.weights, _limit(balance, share))
    for number in range(passes):
        for src, dst in edges_of(source):
            cluster_edges(state, src, dst, richest=richest and number == 0)
    return state


def merged(state: "ClusterState", balance: Balance, *, share: float) -> Clusters:
    """Join clusters to that of their richest neighbour, up to a share of the smallest part's."""
    from gnn_dist.ops.streaming import merge_clusters

    merge_clusters(state._replace(limit=_limit(balance, share)))
    return Clusters.of_state(state)


def cluster_graph(source: Source, clusters: Clusters, *, most_pairs: int) -> "Rows":
    """Return the symmetric graph of clusters, weighted by the edges between them.

    One pass over the edges; up to 43 bytes for each of `most_pairs` while they are counted. Where
    there are more different pairs, the heavier ones are kept.
    """
    from gnn_dist.ops.streaming import PairCounts, Rows, count_pairs

    count = clusters.num_clusters
    pairs = PairCounts.empty(min(most_pairs, source.num_edges + 1) * 4 // 3 + 8, count)
    for src, dst in edges_of(source):
        count_pairs(pairs, src, dst, clusters.of)
    pair, count_of_pair = pairs.counted()
    del pairs
    low, high = np.divmod(pair, count)
    weight = np.minimum(count_of_pair, INT32_LIMIT - 1).astype(np.int32)
    row, column = np.concatenate([high, low]), np.concatenate([low, high])
    order = np.argsort(row * count + column, kind="stable")
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=count), out=indptr[1:])
    return Rows(indptr, column[order].astype(np.int32), np.concatenate([weight, weight])[order])


def _limit(balance: Balance, share: float) -> Array:
    """Return int64 (1 + K,): no limit for the volume, then each constraint's."""
    total, heaviest = balance.weights.sum(0), balance.weights.max(0, initial=1)
    limit = np.maximum(share * balance.targets.min() * total, heaviest).astype(np.int64)
    return np.concatenate([[NO_LIMIT], np.maximum(limit, 1)])
