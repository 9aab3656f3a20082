"""2PS-L: vertex-cut in two phases, clusters of nodes first, then edges near their clusters."""

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.graph import Graph
from gnn_dist.partitioners.options import check_integer, check_number
from gnn_dist.partitioners.repair import deal_to_lightest
from gnn_dist.partitioners.vertex_cut import EdgeSource, VertexCutStream, open_stream

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TwoPhase", "pack_largest_first"]

Array = NDArray[Any]

MOST_LARGE = 2**16  # clusters that are packed one by one; the small ones fill what is left


@dataclass(frozen=True)
class TwoPhase:
    """Cluster the nodes of a stream, pack clusters in parts, and assign edges near their clusters.

    1. Clustering: for each edge, the end with less of its cluster's volume (sum of degrees) besides
       itself joins the other's cluster, unless that comes to more than `cluster_share` of what a
       part is to have.
    2. Clusters are packed in parts, the largest first, each where there is least.
    3. Edges whose two clusters are in one part go there; then each other edge goes to that one of
       its two parts where more is at hand. A full part's edges go where clones are.

    An edge is compared with two parts, whatever P. The third step's last resort is ours: the paper
    hashes such edges.

    Source: R. Mayer, K. Orujzade, H.-A. Jacobsen, "Out-of-Core Edge Partitioning at Linear
    Run-Time", arXiv:2203.12721. 3 + `passes` passes of O(E) time;
    (48 + P / 8) bytes a node, and 4 an edge for the result.

    Attributes:
        passes: How often the clustering goes through the stream.
        cluster_share: The largest cluster, as a fraction of a part's share. With 1, few large
            clusters fill the parts: on cora, debian, facebook-pages and tolokers, P = 4 and 16,
            replication was higher by 2 % to 26 % than with 0.25.
        imbalance: How far a part may be above the mean number of edges, as a fraction.
        seed: Of what ties are broken by.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> two_triangles = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3])
        >>> TwoPhase()(two_triangles, 2).num_edges.tolist()
        [3, 3]
    """

    name: ClassVar[str] = "2ps-l"
    cut: ClassVar[str] = "vertex"
    passes: int = 1
    cluster_share: float = 0.25
    imbalance: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**63 - 1))
        object.__setattr__(self, "passes", check_integer("passes", self.passes, 1, 100))
        for name, least, most in (("cluster_share", 1e-6, 1), ("imbalance", 0, 100)):
            value = check_number(name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)

    def __call__(self, graph: Graph | EdgeSource, num_parts: int) -> EdgePartition:
        """Return a vertex-cut partition."""
        stream = open_stream(graph, num_parts, imbalance=self.imbalance, seed=self.seed)
        homes = self._homes(stream)
        for rest in (False, True):
            for first, src, dst, parts in stream.chunks():
                stream.assigner.two_phase(parts, (src, dst), homes, rest=rest, first=first)
        return stream.finish()

    def _homes(self, stream: VertexCutStream) -> "Tensor":
        """Return each node's cluster's part and volume, as `homes_of` does."""
        import torch

        from gnn_dist.ops.edge_parts import homes_of
        from gnn_dist.ops.streaming import ClusterState, cluster_edges

        degree, num_parts = stream.assigner.degree, stream.assigner.num_parts
        share = 2 * stream.source.num_edges / num_parts
        limit = np.array([max(1, int(self.cluster_share * share))])
        state = ClusterState.single(degree.numpy(), np.zeros((degree.numel(), 0)), limit)
        for _ in range(self.passes):
            for chunk in stream.chunks():
                cluster_edges(state, chunk.src.numpy(), chunk.dst.numpy(), besides=True)
        cluster, volume = state.nodes["cluster"].copy(), state.nodes["load"][:, 0].copy()
        del state
        part = pack_largest_first(volume, num_parts)
        return homes_of(torch.from_numpy(part[cluster]), torch.from_numpy(volume[cluster]), degree)


def pack_largest_first(weights: Array, num_parts: int) -> Array:
    """Pack weights in parts, the largest first, each in the part that has least so far.

    Source: R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM Journal on Applied
    Mathematics 17 (1969). The heaviest part has at most 4/3 - 1/(3 P) of the least possible weight.
    Weights after the first `MOST_LARGE` are dealt out together. O(K log K) for K weights.

    Args:
        weights: Integer (K,), not negative.
        num_parts: P.

    Returns:
        int32 (K,), the part of each.

    Example:
        >>> pack_largest_first(np.array([1, 5, 3, 2]), 2).tolist()
        [0, 0, 1, 1]
    """
    order = np.argsort(-weights, kind="stable")
    order = order[: np.count_nonzero(weights)]  # nothing is in an empty cluster
    packed = np.zeros(len(weights), np.int32)
    parts = [(0, part) for part in range(num_parts)]
    for item in order[:MOST_LARGE]:
        load, part = parts[0]
        packed[item] = part
        heapq.heapreplace(parts, (load + int(weights[item]), part))
    small = order[MOST_LARGE:]
    if len(small):
        loads = np.zeros(num_parts, np.int64)
        loads[[part for _, part in parts]] = [load for load, _ in parts]
        packed[small] = deal_to_lightest(loads, weights[small], np.ones(num_parts))
    return packed
