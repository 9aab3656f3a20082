"""Which part each edge belongs to (vertex-cut), and how good that is.

Every part that holds an edge of a node has a clone of the node; one of the clones is the root,
whose part owns the node.

    edges    a->b in part 0, b->c in part 1       clones of b: 0 and 1; its root is one of them
    part 0   a b        part 1   b c              replication factor (1 + 2 + 1) / 3
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition, max_over_mean

__all__ = [
    "EdgePartition",
    "EdgePartitionQuality",
    "PartEdges",
    "check_covers",
    "measure_edge_quality",
    "part_edges",
]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class EdgePartition:
    """An assignment of edges to parts and of nodes to roots, and how it was made.

    Attributes:
        assignment: int32 (E,), the part of each edge, in the graph's CSR order.
        root: int32 (N,), the part of each node's root, by original id: one that holds an edge of
            the node, unless the node has none.
        num_parts: P.
        method: Name of the algorithm.
        options: The algorithm's options, as plain values.
        notes: Things the user should know, one sentence each.

    Raises:
        PartitionError: One of the vectors is no vector of parts in 0..P-1.

    Example:
        >>> partition = EdgePartition(np.array([0, 1]), np.array([0, 0, 1]), num_parts=2)
        >>> partition.num_edges.tolist(), partition.nodes.sizes.tolist()
        ([1, 1], [2, 1])
    """

    assignment: Array
    root: Array
    num_parts: int
    method: str = "given"
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A partition of nodes is a checked vector of parts, so it checks these two.
        assignment = Partition(self.assignment, self.num_parts).assignment
        object.__setattr__(self, "assignment", assignment)
        object.__setattr__(self, "root", self.nodes.assignment)

    @cached_property
    def nodes(self) -> Partition:
        """The partition of nodes that the roots make: who owns which."""
        return Partition(self.root, self.num_parts)

    @property
    def num_edges(self) -> Array:
        """int64 (P,), edges in each part."""
        return np.bincount(self.assignment, minlength=self.num_parts)

    @property
    def sizes(self) -> Array:
        """int64 (P,), roots in each part."""
        return self.nodes.sizes

    @cached_property
    def edge_order(self) -> Array:
        """int64 (E,), positions of the edges by part, then ascending."""
        # NumPy sorts two-byte numbers in linear time.
        narrow = self.num_parts <= 2**15
        return np.argsort(self.assignment.astype(np.int16 if narrow else np.int32), kind="stable")


class PartEdges(NamedTuple):
    """The edges of one part and its clones, all by original id.

    Attributes:
        position: int64 (e,), positions in the graph's CSR order, ascending.
        src: (e,), sources.
        dst: int64 (e,), destinations, ascending.
        owned: int64 (n,), nodes whose root is here, ascending.
        halo: int64 (h,), nodes with another clone here, ascending.
    """

    position: Array
    src: Array
    dst: Array
    owned: Array
    halo: Array


def part_edges(graph: Graph, partition: EdgePartition) -> Iterator[PartEdges]:
    """Yield each part's edges and clones. O(E + P N) time, and N bytes beside what is yielded.

    Raises:
        PartitionError: The partition is of another graph.
    """
    check_covers(graph, partition)
    ends = np.cumsum([0, *partition.num_edges])
    node_ptr = partition.nodes.book.node_ptr
    for part in range(partition.num_parts):
        position = partition.edge_order[ends[part] : ends[part + 1]]
        src = graph.indices[position]
        dst = np.searchsorted(graph.indptr, position, side="right") - 1
        elsewhere = np.zeros(graph.num_nodes, bool)
        elsewhere[src] = True
        elsewhere[dst] = True
        owned = partition.nodes.order[node_ptr[part] : node_ptr[part + 1]]
        elsewhere[owned] = False
        yield PartEdges(position, src, dst, owned, np.flatnonzero(elsewhere))


def check_covers(graph: Graph, partition: EdgePartition) -> None:
    """Check that a partition is of a graph's numbers of edges and nodes.

    Raises:
        PartitionError: It is not.
    """
    found = len(partition.assignment), len(partition.root)
    if found != (graph.num_edges, graph.num_nodes):
        raise PartitionError(
            f"the partition must cover the graph's {graph.num_edges} edges and {graph.num_nodes} "
            f"nodes, got {found[0]} and {found[1]}"
        )


@dataclass(frozen=True)
class EdgePartitionQuality:
    """What a vertex-cut partition costs. All lists have one entry per part.

    Attributes:
        num_nodes: Roots.
        num_edges: Edges.
        num_halo: Clones that are no roots.
        num_clones: Roots and other clones.
        num_train: Roots of training nodes (of the first split), or None without masks.
        num_split: Nodes with more than one clone.
        split_fraction: The same, divided by N; 0 without nodes.
        replication_factor: Sum of the clones over N; 1 for an empty graph.
    """

    num_nodes: list[int]
    num_edges: list[int]
    num_halo: list[int]
    num_clones: list[int]
    num_train: list[int] | None
    num_split: int
    split_fraction: float
    replication_factor: float

    @property
    def balance(self) -> dict[str, float]:
        """Maximum over mean of roots, edges, clones and, where known, roots that train."""
        counts = {"nodes": self.num_nodes, "edges": self.num_edges, "clones": self.num_clones}
        if self.num_train is not None:
            counts["train"] = self.num_train
        return {name: max_over_mean(values) for name, values in counts.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, `balance` included."""
        return {**asdict(self), "balance": self.balance}


def measure_edge_quality(graph: Graph, partition: EdgePartition) -> EdgePartitionQuality:
    """Measure a vertex-cut partition in O(E + P N) time; 8 bytes an edge.

    Raises:
        PartitionError: The partition is of another graph, or a root is in a part without an edge
            of its node.
    """
    num_halo = []
    split = np.zeros(graph.num_nodes, bool)
    linked = graph.in_degree > 0
    linked[graph.indices] = True
    for part, edges in enumerate(part_edges(graph, partition)):
        _check_roots(edges, part, linked)
        split[edges.halo] = True
        num_halo.append(len(edges.halo))
    num_nodes = partition.sizes.tolist()
    train = None
    if graph.train_mask is not None:
        mask = graph.train_mask if graph.train_mask.ndim == 1 else graph.train_mask[:, 0]
        train = np.bincount(partition.root[mask], minlength=partition.num_parts).tolist()
    clones = graph.num_nodes + sum(num_halo)
    return EdgePartitionQuality(
        num_nodes=num_nodes,
        num_edges=partition.num_edges.tolist(),
        num_halo=num_halo,
        num_clones=[n + h for n, h in zip(num_nodes, num_halo, strict=True)],
        num_train=train,
        num_split=int(split.sum()),
        split_fraction=int(split.sum()) / max(1, graph.num_nodes),
        replication_factor=clones / graph.num_nodes if graph.num_nodes else 1.0,
    )


def _check_roots(edges: PartEdges, part: int, linked: Array) -> None:
    """Check that the nodes rooted in a part have an edge there, or none at all."""
    without = np.zeros(len(linked), bool)
    without[edges.owned] = True
    without[edges.src] = False
    without[edges.dst] = False
    wrong = np.flatnonzero(without & linked)
    if len(wrong):
        raise PartitionError(
            f"a root must be in a part that holds an edge of its node, got part {part} for node "
            f"{wrong[0]}"
        )
