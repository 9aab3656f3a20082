"""METIS for graphs that do not fit: it partitions a graph of clusters made from a stream."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.child_process import run_metis, write_integers
from gnn_dist.partitioners.clustered import Clustered
from gnn_dist.partitioners.clusters import Clusters, cluster_graph, cluster_stream
from gnn_dist.partitioners.options import check_integer
from gnn_dist.partitioners.restream import relieved, settle, shares_of
from gnn_dist.partitioners.sources import Degrees, Source, rows_of

if TYPE_CHECKING:
    from gnn_dist.ops.streaming import Rows

__all__ = ["MetisStream"]

Array = NDArray[Any]

MAX_CLUSTERS = 1 << 21
FEW_NODES = 1024  # as few are not clustered
METIS_PAIR_BYTES = 300  # what METIS needs for a pair of neighbours, both directions, and a margin


@dataclass(frozen=True)
class MetisStream(Clustered):
    """Cluster the edges as they come, let METIS partition the clusters, then settle the nodes.

    Clusters are moved until they are balanced in every constraint; then nodes are, where the source
    has rows (a stream of edges has none).

    Source: clustering as `spring`; G. Karypis, V. Kumar, "A fast and high quality multilevel scheme
    for partitioning irregular graphs", SIAM Journal on Scientific Computing 20 (1998).

    O((cluster_passes + passes + 2) * E + N log N) time. Memory: 48 bytes a node, 24 more for each
    constraint, and `memory_limit` for the graph of clusters and METIS, which runs in a process of
    its own; none for an edge.

    Attributes:
        seed: Seeds METIS's choices.
        passes: How often rows are read to settle the nodes.
        cluster_passes: How often edges are read for clustering.
        memory_limit: Bytes that METIS may need: it decides how many pairs of clusters are kept.
        nodes_per_cluster: The mean at which clustering aims; at most 2^21 clusters in any case.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3], symmetrize=True)
        >>> MetisStream()(graph, 2).assignment.tolist()
        [0, 0, 0, 1, 1, 1]
    """

    name: ClassVar[str] = "metis-stream"
    seed: int = 0
    passes: int = 3
    cluster_passes: int = 1
    memory_limit: int = 4 << 30
    nodes_per_cluster: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = {
            "seed": check_integer("seed", self.seed, 0, 2**31 - 1),
            "passes": check_integer("passes", self.passes, 0, 1000),
            "cluster_passes": check_integer("cluster_passes", self.cluster_passes, 1, 1000),
            "memory_limit": check_integer("memory_limit", self.memory_limit, 1 << 16, 2**62),
            "nodes_per_cluster": check_integer(
                "nodes_per_cluster", self.nodes_per_cluster, 1, 2**31 - 1
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def assign(self, graph: Source, balance: Balance, counted: Degrees) -> Array:
        """Return the part of each node."""
        most = self._most_clusters(graph.num_nodes)
        passes = self.cluster_passes if most < graph.num_nodes else 0
        state = cluster_stream(
            graph, counted, balance, share=2 * balance.num_parts / most, passes=passes
        )
        clusters = Clusters.of_state(state).bundled(most, state.limit[1:])
        del state  # the largest of all tables of nodes
        rows = cluster_graph(graph, clusters, most_pairs=self.memory_limit // METIS_PAIR_BYTES)
        parts = self._partition_clusters(clusters, rows, balance)[clusters.of]
        return self._settled(graph, parts, balance, counted)

    def _most_clusters(self, num_nodes: int) -> int:
        wanted = max(num_nodes // self.nodes_per_cluster, min(num_nodes, FEW_NODES))
        return min(MAX_CLUSTERS, wanted)

    def _partition_clusters(self, clusters: Clusters, rows: "Rows", balance: Balance) -> Array:
        """Return int32 (C,), balanced as well as clusters can be."""
        from gnn_dist.ops.streaming import Placement

        shares = shares_of(balance)._replace(node_weight=clusters.weights)
        if clusters.num_clusters > balance.num_parts and len(rows.indices):
            parts = _metis(rows, replace(balance, weights=clusters.weights), self.seed)
        else:
            parts = np.arange(clusters.num_clusters, dtype=np.int32) % balance.num_parts
        placement = Placement.of(parts, shares, None)
        settle(placement, rows, shares, 3)
        return placement.parts

    def _settled(self, source: Source, parts: Array, balance: Balance, counted: Degrees) -> Array:
        from gnn_dist.ops.streaming import Placement

        shares = shares_of(balance)
        if not hasattr(source, "indptr") or not self.passes:
            return relieved(parts, shares, counted.degree)
        rows = rows_of(source, self.name)
        placement = Placement.of(parts, shares, rows)
        settle(placement, rows, shares, self.passes)
        return placement.parts


def _metis(rows: "Rows", balance: Balance, seed: int) -> Array:
    """Run METIS on a graph of clusters.

    Args:
        rows: The graph, symmetric, with weights.
        balance: The constraints on the C clusters.
        seed: METIS's.

    Returns:
        int32 (C,).

    Raises:
        PartitionError: There is no room for temporary files, or METIS failed.
    """
    vectors = {"indptr": rows.indptr, "indices": rows.indices, "edge_weight": rows.edge_weight}
    try:
        with tempfile.TemporaryDirectory(prefix="gnn-dist-metis-") as name:
            for vector, values in vectors.items():
                with (Path(name) / f"{vector}.int64").open("wb") as file:
                    write_integers(file, np.asarray(values))
            return run_metis(Path(name), balance, recursive=False, options={"seed": seed}).parts
    except OSError as error:
        raise PartitionError(
            f"METIS needs a folder for temporary files and a Python that it can start, got "
            f"{error}: set TMPDIR to a folder with room for {16 * len(rows.indices)} bytes"
        ) from error
