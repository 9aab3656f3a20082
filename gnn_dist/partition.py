"""Which part each node belongs to, how good that is, and the ids that follow from it."""

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import csr_take, row_blocks
from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph

__all__ = ["Partition", "PartitionBook", "PartitionQuality", "measure_quality"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Partition:
    """An assignment of nodes to parts, and how it was made. It holds no graph data.

    Attributes:
        assignment: int32 (N,), the part of each node, by original id.
        num_parts: P.
        method: Name of the algorithm.
        options: The algorithm's options, as plain values.
        notes: Things the user should know (an empty part, a repaired input), one sentence each.

    Raises:
        PartitionError: The assignment is no vector of parts in 0..P-1.

    Example:
        >>> Partition(np.array([0, 1, 0]), num_parts=2).sizes.tolist()
        [2, 1]
    """

    assignment: Array
    num_parts: int
    method: str = "given"
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assignment = np.asarray(self.assignment)
        if self.num_parts < 1:
            raise PartitionError(f"num_parts must be at least 1, got {self.num_parts}")
        if assignment.ndim != 1 or (assignment.dtype.kind not in "iu" and len(assignment)):
            raise PartitionError(
                f"the assignment must be an integer vector, got shape {assignment.shape} of "
                f"{assignment.dtype}"
            )
        outside = (assignment < 0) | (assignment >= self.num_parts)
        if outside.any():
            node = int(np.argmax(outside))
            raise PartitionError(
                f"parts must lie in 0..{self.num_parts - 1}, got {assignment[node]} for node {node}"
            )
        object.__setattr__(self, "assignment", assignment.astype(np.int32, copy=False))

    @property
    def sizes(self) -> Array:
        """int64 (P,), nodes in each part."""
        return np.bincount(self.assignment, minlength=self.num_parts)

    @cached_property
    def order(self) -> Array:
        """int64 (N,), original ids by global id: by part, then ascending."""
        return np.argsort(self.assignment, kind="stable")

    @cached_property
    def global_id(self) -> Array:
        """int64 (N,), the global id of each original id; the inverse of `order`."""
        inverse = np.empty(len(self.order), np.int64)
        inverse[self.order] = np.arange(len(self.order))
        return inverse

    @property
    def book(self) -> "PartitionBook":
        """The partition book of this assignment."""
        node_ptr = np.zeros(self.num_parts + 1, np.int64)
        np.cumsum(self.sizes, out=node_ptr[1:])
        return PartitionBook(node_ptr)


@dataclass(frozen=True, eq=False)
class PartitionBook:
    """Who owns which global ids.

    Attributes:
        node_ptr: int64 (P + 1,); part p owns the global ids `[node_ptr[p], node_ptr[p + 1])`.

    Raises:
        PartitionError: `node_ptr` does not rise from 0.

    Example:
        >>> book = PartitionBook(np.array([0, 4, 4, 10]))
        >>> book.part_of(np.array([3, 4])).tolist()
        [0, 2]
        >>> book.parts_of_rank(1, world_size=2)
        range(1, 3)
    """

    node_ptr: Array

    def __post_init__(self) -> None:
        node_ptr = np.asarray(self.node_ptr, dtype=np.int64)
        if (
            node_ptr.ndim != 1
            or len(node_ptr) < 2
            or node_ptr[0] != 0
            or (np.diff(node_ptr) < 0).any()
        ):
            raise PartitionError(
                f"node_ptr must rise from 0 over at least one part, got {node_ptr}"
            )
        object.__setattr__(self, "node_ptr", node_ptr)

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.node_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return int(self.node_ptr[-1])

    def part_of(self, global_id: Array) -> Array:
        """Return the int64 part of each global id."""
        return np.searchsorted(self.node_ptr, global_id, side="right") - 1

    def parts_of_rank(self, rank: int, world_size: int) -> range:
        """Return the consecutive parts that a rank loads.

        Raises:
            PartitionError: There are more ranks than parts, or there is no such rank.
        """
        if not 0 <= rank < world_size:
            raise PartitionError(
                f"the rank must lie in 0..{world_size - 1} (world_size={world_size}), got {rank}"
            )
        if world_size > self.num_parts:
            raise PartitionError(
                f"world_size must be at most the number of parts, got {world_size} ranks for "
                f"{self.num_parts} parts: start fewer ranks or partition again with "
                f"--parts {world_size}"
            )
        bounds = [r * self.num_parts // world_size for r in (rank, rank + 1)]
        return range(*bounds)

    def rank_ptr(self, world_size: int) -> Array:
        """Return int64 (world_size + 1,): rank r owns global ids `[ptr[r], ptr[r + 1])`."""
        starts = [self.parts_of_rank(r, world_size).start for r in range(world_size)]
        return self.node_ptr[[*starts, self.num_parts]]


@dataclass(frozen=True)
class PartitionQuality:
    """What a partition costs. All lists have one entry per part.

    Attributes:
        num_nodes: Owned nodes.
        num_edges: In-edges of owned nodes.
        num_halo: Remote nodes that owned nodes read from.
        num_train: Training nodes (of the first split), or None without masks.
        edge_cut: Edges whose ends lie in different parts.
        edge_cut_fraction: The same, divided by E; 0 without edges.
        replication_factor: Sum of (owned + halo) over N; 1 for an empty graph.
    """

    num_nodes: list[int]
    num_edges: list[int]
    num_halo: list[int]
    num_train: list[int] | None
    edge_cut: int
    edge_cut_fraction: float
    replication_factor: float

    @property
    def balance(self) -> dict[str, float]:
        """Maximum over mean of nodes, edges and, where known, training nodes."""
        counts = {"nodes": self.num_nodes, "edges": self.num_edges}
        if self.num_train is not None:
            counts["train"] = self.num_train
        return {name: max_over_mean(values) for name, values in counts.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, `balance` included."""
        return {**asdict(self), "balance": self.balance}


def measure_quality(graph: Graph, partition: Partition) -> PartitionQuality:
    """Measure a partition of a graph in O(E log E) time at worst and O(N) memory.

    Raises:
        PartitionError: The partition is of another number of nodes.
    """
    if len(partition.assignment) != graph.num_nodes:
        raise PartitionError(
            f"the partition must cover the graph's {graph.num_nodes} nodes, got "
            f"{len(partition.assignment)}"
        )
    num_edges, num_halo, edge_cut = _count_edges(graph, partition)
    train = None
    if graph.train_mask is not None:
        mask = graph.train_mask if graph.train_mask.ndim == 1 else graph.train_mask[:, 0]
        train = np.bincount(partition.assignment[mask], minlength=partition.num_parts).tolist()
    return PartitionQuality(
        num_nodes=partition.sizes.tolist(),
        num_edges=num_edges,
        num_halo=num_halo,
        num_train=train,
        edge_cut=edge_cut,
        edge_cut_fraction=edge_cut / max(1, graph.num_edges),
        replication_factor=(graph.num_nodes + sum(num_halo)) / graph.num_nodes
        if graph.num_nodes
        else 1.0,
    )


def _count_edges(graph: Graph, partition: Partition) -> tuple[list[int], list[int], int]:
    """Return per part the in-edges and the halo rows, and the number of cut edges."""
    node_ptr, in_degree = partition.book.node_ptr, graph.in_degree
    num_edges, num_halo, edge_cut = [], [], 0
    # The last part that has read each node: visiting one part after the other, a source is a new
    # halo row if the mark is of an earlier part. So no list of (part, source) pairs is needed.
    last_reader = np.full(graph.num_nodes, -1, np.int32)
    for part in range(partition.num_parts):
        owned = partition.order[node_ptr[part] : node_ptr[part + 1]]
        edges = halo = 0
        for rows in row_blocks(in_degree[owned]):
            position = csr_take(graph.indptr, owned[rows])[1]
            src = graph.indices[position]
            remote = src[partition.assignment[src] != part]
            new = np.unique(remote[last_reader[remote] != part])
            last_reader[new] = part
            edges += len(src)
            halo += len(new)
            edge_cut += len(remote)
        num_edges.append(edges)
        num_halo.append(halo)
    return num_edges, num_halo, edge_cut


def max_over_mean(values: list[int]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
