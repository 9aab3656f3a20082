"""Refinement: moves nodes between parts while the replication factor falls and balance is kept."""

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph
from gnn_dist.partitioners.hypergraph import Hypergraph, connectivity, contract, hypergraph_of
from gnn_dist.partitioners.options import check_integer

__all__ = ["Limited", "Refinement", "Structure", "refine", "repair", "smooth"]

Array = NDArray[Any]

# How much of the cost of a further part is left when c pins are there already: a^c. From looking
# far ahead to the connectivity itself.
ALPHAS = (0.9, 0.9, 0.8, 0.8, 0.7, 0.6, 0.5, 0.3, 0.1, 0.0)
BATCHES = 8  # in which the nodes of a smoothed pass choose
CLUSTER_SHARE = 0.1  # of a part, the most that a cluster of several nodes weighs
ROOM = 0.98  # of the limits, to which parts are brought to have something to move
COARSEST = 40  # nodes a part
MOST_PINS = 300  # of a net that clusters are found by
SEARCH_BYTES = 16  # of a local search, a node and part


class Limited(Protocol):
    """What balance means: `Balance`, or anything with its weights and limits."""

    @property
    def weights(self) -> Array:
        """int64 (N, K), not negative."""
        ...

    @property
    def limits(self) -> Array:
        """int64 (P, K), the most that each part may hold."""
        ...


class Structure(Protocol):
    """A graph, in memory or on disk."""

    @property
    def indptr(self) -> Array:
        """int64 (N + 1,)."""
        ...

    @property
    def indices(self) -> Array:
        """int32 (E,), perhaps a memory map; ascending within rows."""
        ...


@dataclass(frozen=True)
class Refinement:
    """How long to refine.

    Attributes:
        cycles: V-cycles at most; they end when one brings less than 0.1 per cent.
        shakes: How often to make room below the limits and start again, at most.
        rounds: Searches from every node at most, on each level of a cycle.
        patience: Moves without a new best after which one search gives up.
        search_edges: Graphs of more edges have smoothed passes alone, in O(E) time each.
        max_bytes: Memory that counts of nodes and parts may take.
        seed: Of the order of nodes.
    """

    cycles: int = 2
    shakes: int = 1
    rounds: int = 8
    patience: int = 10
    search_edges: int = 5_000_000
    max_bytes: int = 4 << 30
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cycles", "shakes", "rounds", "search_edges", "max_bytes"):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), 0, 2**62))
        for name, low in (("patience", 1), ("seed", 0)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), low, 2**31))


DEFAULT = Refinement()


def refine(
    graph: Graph,
    assignment: Array,
    balance: Limited,
    options: Refinement = DEFAULT,
    *,
    others: tuple[Array, ...] = (),
) -> Array:
    """Return an assignment of no greater replication factor, within the limits if it can be.

    A V-cycle puts nodes into clusters, and these into larger ones, without joining nodes of
    different parts; then searches on each level, from the coarsest to the graph itself. Before
    that, nodes leave parts that are above their limits, those that cost least. With `others`,
    clusters respect the parts of both assignments, so that what they agree on is moved as one:
    the combination is at least as good as `assignment`.

    Deterministic, and the same for any number of threads. O(E log E) time a cycle in practice; some
    60 bytes an edge and, on each level, 16 a node and part. Graphs of more than `search_edges`
    edges, or that need too much memory, have `smooth` instead.

    Limits that are reached leave nothing to move. So parts are then brought some way below them,
    those nodes first that cost least, and the cycles are repeated from there.

    Source: "Engineering a direct k-way Hypergraph Partitioning Algorithm" (Akhremtsev et al., 2017)
    for the cycles; "Memetic Multilevel Hypergraph Partitioning" (Andre et al., arXiv 1710.01968)
    for combinations; the kernels name theirs.

    Args:
        graph: The graph.
        assignment: Integer (N,), parts in [0, P).
        balance: Weights and limits.
        options: How long to refine.
        others: Further assignments of the same graph.

    Returns:
        int32 (N,). If `assignment` was within the limits, so is this, at a replication factor that
        is no greater. Otherwise this is not further above them. No part becomes empty.

    Raises:
        PartitionError: Something does not fit the graph, or memory does not allow it.

    Example:
        >>> from types import SimpleNamespace
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3])  # two triangles
        >>> ones = np.ones((6, 1), np.int64)
        >>> balance = SimpleNamespace(weights=ones, limits=np.array([[4], [4]]))
        >>> refine(graph, np.array([0, 0, 1, 1, 1, 0]), balance).tolist()
        [0, 0, 0, 1, 1, 1]
    """
    start = _checked(graph, assignment, balance)
    if graph.num_nodes == 0 or len(balance.limits) == 1:
        return start
    if graph.num_edges > options.search_edges or not _fits(graph, balance, options):
        return smooth(graph, start, balance, options)
    job = _Job.of(graph, balance, options)
    best = smooth(graph, job.repaired(start), balance, options)
    for other in others:
        best = job.v_cycle((best, _checked(graph, other, balance)))
    return job.shaken(job.cycled(best))


def repair(
    graph: Graph, assignment: Array, balance: Limited, options: Refinement = DEFAULT
) -> Array:
    """Move nodes out of parts that are above their limits, those that cost least; no more.

    Args:
        graph: The graph.
        assignment: Integer (N,), parts in [0, P).
        balance: Weights and limits.
        options: `max_bytes`; a graph that needs more is left as it is.

    Returns:
        int32 (N,). Within the limits if that was found, else not further above them.
    """
    start = _checked(graph, assignment, balance)
    weights = _columns(balance.weights)
    loads = np.stack([np.bincount(start, column, len(balance.limits)) for column in weights.T], 1)
    if (loads <= balance.limits).all() or not _fits(graph, balance, options):
        return start
    return _Job.of(graph, balance, options).repaired(start)


def _fits(graph: Graph, balance: Limited, options: Refinement) -> bool:
    """Return whether the tables of local searches are within the memory allowed."""
    return SEARCH_BYTES * graph.num_nodes * len(balance.limits) <= options.max_bytes


def smooth(
    graph: Structure, assignment: Array, balance: Limited, options: Refinement = DEFAULT
) -> Array:
    """Return an assignment of no greater replication factor, in passes along the edges.

    Each node goes where its nets have most pins already, at first also where this alone does not
    yet rid a part of any. The graph may be a memory map: every pass reads it front to back, twice.
    Nodes that a full part has no room for change places in pairs.

    Deterministic, and the same for any number of threads. O(E P) time a pass; N (P + 8 K + 16)
    bytes, and nothing an edge.

    Source: "Social Hash Partitioner: A Scalable Distributed Hypergraph Partitioner" (Kabiljo et
    al., arXiv 1707.06665); a is lowered here instead of fixed.

    Args:
        graph: The structure.
        assignment: Integer (N,), parts in [0, P).
        balance: Weights and limits. No part gets further above a limit.
        options: `max_bytes`.

    Returns:
        int32 (N,).

    Raises:
        PartitionError: Something does not fit the graph, or N P bytes are more than `max_bytes`.
    """
    best = _checked(graph, assignment, balance)
    num_nodes, num_parts = len(best), len(balance.limits)
    if num_nodes * num_parts > options.max_bytes:
        raise PartitionError(
            f"refinement needs {num_nodes * num_parts} bytes for {num_nodes} nodes and {num_parts} "
            f"parts, got max_bytes={options.max_bytes}: raise it, or lower --parts"
        )
    limits = np.ascontiguousarray(balance.limits, np.int64)
    fixed = (graph.indptr, graph.indices, _columns(balance.weights), limits)
    batch = max(1, num_nodes // BATCHES)
    now, least = best, None
    for table in (*(_costs(alpha) for alpha in ALPHAS), np.zeros(0, np.float32)):
        moved, value = _call("smooth_pass", *fixed, now, table, batch)
        if least is None or value < least:
            best, least = now, value
        now = moved.numpy()
    return best


def _costs(alpha: float) -> Array:
    """Return float32 (256,), alpha to the power of each count; a full count costs nothing."""
    costs = np.power(np.float64(alpha), np.arange(256)).astype(np.float32)
    costs[-1] = 0
    return costs


@dataclass(frozen=True, eq=False)
class _Job:
    """What stays the same while one assignment is refined."""

    hypergraph: Hypergraph
    limits: Array
    options: Refinement

    @classmethod
    def of(cls, graph: Graph, balance: Limited, options: Refinement) -> "_Job":
        """Return the job of a graph in memory."""
        return cls(
            hypergraph_of(graph, _columns(balance.weights)),
            np.ascontiguousarray(balance.limits, np.int64),
            options,
        )

    def repaired(self, part: Array) -> Array:
        """Bring parts to their limits, if possible by way of tighter ones, which leave room."""
        before = self._excess(part)
        if before == 0:
            return part
        for limits in (self._tight_limits(), self.limits):
            moved = self._search(self.hypergraph, part, limits, rounds=0)
            after = self._excess(moved)
            if after == 0 or (after <= before and limits is self.limits):
                return moved
        return part

    def cycled(self, part: Array) -> Array:
        """Repeat V-cycles while they help."""
        value = connectivity(self.hypergraph, part)
        for cycle in range(self.options.cycles):
            part = self.v_cycle((part, part), 100 * cycle)
            before, value = value, connectivity(self.hypergraph, part)
            if before - value <= value // 1000:
                break
        return part

    def shaken(self, best: Array) -> Array:
        """Make room below the limits and repeat cycles from there, while that helps."""
        if self._excess(best):
            return best
        value = connectivity(self.hypergraph, best)
        for _ in range(self.options.shakes):
            moved = self._search(self.hypergraph, best, self._tight_limits(), rounds=0)
            if self._excess(moved):
                break
            moved = self.cycled(moved)
            before, after = value, connectivity(self.hypergraph, moved)
            if after < value:
                best, value = moved, after
            if before - after <= value // 1000:
                break
        return best

    def v_cycle(self, pair: tuple[Array, Array], stir: int = 0) -> Array:
        """Coarsen as long as that makes the hypergraph smaller, then search on every level."""
        part, hypergraph = pair[0], self.hypergraph
        labels = _joint_labels(*pair)
        # Limits above the total say nothing about the size of parts.
        total = hypergraph.node_weight.sum(axis=0)
        most = (CLUSTER_SHARE * np.minimum(self.limits.min(axis=0), total)).astype(np.int64)
        levels: list[tuple[Hypergraph, Array]] = []
        while hypergraph.num_nodes > COARSEST * len(self.limits):
            key = self.options.seed + stir + len(levels)
            clusters = _call(
                "cluster_nodes", *hypergraph.arrays, most, labels, MOST_PINS, key
            ).numpy()
            coarse = contract(hypergraph, clusters)
            if coarse.num_nodes > 0.95 * hypergraph.num_nodes:
                break
            levels.append((hypergraph, clusters))
            part, labels = (_of_clusters(values, clusters) for values in (part, labels))
            hypergraph = coarse
        part = self._search(hypergraph, part, self.limits, stir=stir)
        for finer, clusters in reversed(levels):
            part = self._search(finer, part[clusters], self.limits, stir=stir)
        return part

    def _search(
        self,
        hypergraph: Hypergraph,
        part: Array,
        limits: Array,
        *,
        rounds: int | None = None,
        stir: int = 0,
    ) -> Array:
        rounds = self.options.rounds if rounds is None else rounds
        state = (*hypergraph.arrays, limits, part)
        key = self.options.seed + stir
        found: Array = _call("local_search", *state, self.options.patience, rounds, key).numpy()
        return found

    def _tight_limits(self) -> Array:
        """Return limits with some room below the real ones, but none below a fair share."""
        total = self.hypergraph.node_weight.sum(axis=0)
        # Parts may be meant to differ, so that what is fair goes by the limits.
        fair = np.ceil(self.limits * (total / np.maximum(1, self.limits.sum(axis=0))))
        tight = np.maximum(ROOM * self.limits, fair).astype(np.int64)
        least: Array = np.minimum(tight, self.limits)
        return least

    def _excess(self, part: Array) -> float:
        """Return how far parts are above their limits, each weight in fair shares."""
        weights = self.hypergraph.node_weight
        loads = np.zeros(self.limits.shape, np.int64)
        np.add.at(loads, part, weights)
        share = np.maximum(1, weights.sum(axis=0)) / len(self.limits)
        return float((np.maximum(0, loads - self.limits) / share).sum())


def _joint_labels(first: Array, second: Array) -> Array:
    """Return int32 (N,), equal where both assignments are."""
    both = first.astype(np.int64) * (int(second.max()) + 1) + second
    return np.unique(both, return_inverse=True)[1].astype(np.int32)


def _of_clusters(values: Array, clusters: Array) -> Array:
    out: Array = np.zeros(int(clusters.max(initial=-1)) + 1, np.int32)
    out[clusters] = values
    return out


def _call(kernel: str, *arguments: Any) -> Any:  # noqa: ANN401 - what kernels take and return
    """Call a kernel on NumPy arrays, which it only reads."""
    import torch

    from gnn_dist.ops.native import kernels

    with warnings.catch_warnings():  # of memory maps that cannot be written to
        warnings.simplefilter("ignore", UserWarning)
        tensors = [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    return getattr(kernels, kernel)(*tensors)


def _columns(weights: Array) -> Array:
    return np.ascontiguousarray(weights, np.int64)


def _checked(graph: Structure, assignment: Array, balance: Limited) -> Array:
    """Return int32 (N,)."""
    num_nodes, (num_parts, num_weights) = len(graph.indptr) - 1, balance.limits.shape
    if balance.weights.shape != (num_nodes, num_weights):
        raise PartitionError(
            f"weights must be of shape (num_nodes={num_nodes}, {num_weights}), got "
            f"{balance.weights.shape}"
        )
    part = np.asarray(assignment)
    if part.shape != (num_nodes,) or part.dtype.kind not in "iu":
        raise PartitionError(
            f"assignment must hold an integer for each of {num_nodes} nodes, got shape "
            f"{part.shape} of {part.dtype}"
        )
    if num_nodes and not (part.min() >= 0 and part.max() < num_parts):
        raise PartitionError(
            f"assignment must lie in 0..{num_parts - 1}, got {part.min()}..{part.max()}"
        )
    return part.astype(np.int32)
