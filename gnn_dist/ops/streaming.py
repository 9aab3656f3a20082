"""Passes over rows or edges for streaming partitioners: O(N) state beside what is read once.

Everything here takes NumPy arrays, which may be read-only memory maps, and changes the state that
it is given. Passes are sequential: the result depends on the order of what is read, and on nothing
else.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.ops.native import kernels

__all__ = [
    "ClusterState",
    "PairCounts",
    "Placement",
    "Rows",
    "Shares",
    "cluster_edges",
    "count_ids",
    "count_pairs",
    "merge_clusters",
    "place_nodes",
]

Array = NDArray[Any]

RULES = ("ldg", "fennel")  # in the order of the operator's numbers for them
PIN_COLUMNS = 8  # pins are counted eight parts at a time


class Rows(NamedTuple):
    """A structure whose row v lists what node v reads.

    Attributes:
        indptr: int64 (N + 1,).
        indices: int32 or int64 (E,); copies of an entry stand together.
        edge_weight: int32 (E,), or None: one each.
    """

    indptr: Array
    indices: Array
    edge_weight: Array | None = None


class Shares(NamedTuple):
    """What nodes weigh, and how much of it parts may hold.

    Attributes:
        node_weight: int64 (N, K).
        limits: int64 (P, K), positive.
        targets: float64 (P, K), positive.
    """

    node_weight: Array
    limits: Array
    targets: Array


@dataclass(frozen=True, eq=False)
class Placement:
    """Where nodes are, and what parts hold.

    Attributes:
        parts: int32 (N,), -1 for nodes without a part.
        loads: int64 (P, K).
        pins: uint8 (N, S), S >= P and a multiple of 8: `pins[u, p]` counts, up to 255, the nodes of
            part p that read u or are u. A node's halo copies are its columns with pins, less one.
            None: rows' sources are counted instead.
    """

    parts: Array
    loads: Array
    pins: Array | None

    @classmethod
    def empty(cls, num_nodes: int, shares: Shares, *, with_pins: bool) -> "Placement":
        """Return the placement of no node."""
        loads = np.zeros(shares.limits.shape, np.int64)
        columns = -(-len(loads) // PIN_COLUMNS) * PIN_COLUMNS
        pins = np.zeros((num_nodes, columns), np.uint8) if with_pins else None
        return cls(np.full(num_nodes, -1, np.int32), loads, pins)

    @classmethod
    def of(cls, parts: Array, shares: Shares, rows: Rows | None) -> "Placement":
        """Return the placement of an assignment, with pins if there are rows to count them in.

        Raises:
            IndexError: A part, or an index of the rows, is out of range.
        """
        placement = cls.empty(len(parts), shares, with_pins=rows is not None)
        placement.parts[:] = parts
        for load, weight in zip(placement.loads.T, shares.node_weight.T, strict=True):
            np.add.at(load, parts, weight)
        if rows is not None:
            kernels.add_pins(
                _optional(placement.pins),
                _tensor(placement.parts),
                _tensor(rows.indptr),
                _tensor(rows.indices),
            )
        return placement


class ClusterState(NamedTuple):
    """Clusters of nodes, and what they hold.

    Attributes:
        cluster: int32 (N,), a cluster has the number of one of its first members.
        cluster_load: int64 (N, 1 + K), by cluster: its volume (the sum of degrees) and its weights.
        node_load: int64 (N, 1 + K), what each node adds to its cluster's.
        limit: int64 (1 + K,), what a cluster may hold.
    """

    cluster: Array
    cluster_load: Array
    node_load: Array
    limit: Array

    @classmethod
    def single(cls, node_load: Array, limit: Array) -> "ClusterState":
        """Return clusters of one node each."""
        cluster = np.arange(len(node_load), dtype=np.int32)
        return cls(cluster, node_load.copy(), node_load, limit)


class PairCounts(NamedTuple):
    """A hash table of how many edges pairs of clusters share.

    Attributes:
        keys: int64 (S,), S a power of two: lower cluster * C + higher cluster, -1 where free.
        counts: int32 (S,).
        used: int64 (1,), entries in use.
    """

    keys: Array
    counts: Array
    used: Array

    @classmethod
    def empty(cls, most_pairs: int) -> "PairCounts":
        """Return a table that holds at least half of `most_pairs` of the heaviest pairs."""
        size = 1 << max(3, (most_pairs - 1).bit_length())
        return cls(np.full(size, -1, np.int64), np.zeros(size, np.int32), np.zeros(1, np.int64))


def place_nodes(
    placement: Placement,
    rows: Rows,
    shares: Shares,
    *,
    rule: str,
    filling: bool,
    penalty: float = 0.0,
    order: Array | None = None,
) -> None:
    """Place nodes one after the other, each where it scores best among the parts with room.

    A node's gain in a part is the weight of its row's sources there or, with pins, the number of
    nets it would join (its own, and those of its sources) that have a pin there: each of the others
    would cost one more halo row. Among equal scores a node stays where it is, else it goes to the
    emptier part, else to the lower one. Where no part has room, it goes where it adds the least to
    what is above limits, in parts of the targets.

    Args:
        placement: Changed in place. Its pins must count its parts.
        rows: The structure.
        shares: Weights and limits.
        rule: `ldg`: gain * (1 - fullness), the fullest of load / limit. `fennel`: gain - penalty *
            sqrt(fullness), the fullest of load / target.
        filling: Loads are empty, and old parts only say where nodes not yet visited are likely to
            be. Limits then rise with what was visited, so that parts fill up evenly.
        penalty: For `fennel`: alpha * gamma of the paper, for a part as full as its target.
        order: int64 (n,), the nodes to visit; None: all, ascending.

    Raises:
        IndexError: A part, a node of `order` or an index of the structure is out of range.
        ValueError: Shapes or dtypes do not fit, or a limit or target is not positive.
    """
    kernels.stream_nodes(
        _tensor(placement.parts),
        _tensor(placement.loads),
        _optional(placement.pins),
        _tensor(rows.indptr),
        _tensor(rows.indices),
        _optional(rows.edge_weight),
        _optional(order),
        *map(_tensor, shares),
        RULES.index(rule),
        penalty,
        not filling,
    )


def count_ids(counts: Array, ids: Array) -> None:
    """Add one to `counts`, int64 (N,), for each id.

    Raises:
        IndexError: An id is out of range.
    """
    kernels.count_ids(_tensor(counts), _ids(ids))


def cluster_edges(
    state: ClusterState, src: Array, dst: Array, *, richest: Array | None = None
) -> None:
    """Move ends of edges into the cluster of the other end, edge by edge.

    The end whose cluster has the lower volume moves, if the other cluster has room for it.

    Args:
        state: Changed in place.
        src: int32 or int64 (n,).
        dst: As `src`.
        richest: int32 (N,), -1 for none: for each destination its source of highest volume so far.

    Raises:
        IndexError: An id or a cluster is out of range.
    """
    cluster, cluster_load, node_load, limit = map(_tensor, state)
    kernels.cluster_edges(
        cluster, cluster_load, _optional(richest), _ids(src), _ids(dst), node_load, limit
    )


def merge_clusters(state: ClusterState, richest: Array) -> None:
    """Join clusters, the least full first, to that of the richest neighbour of their members.

    A cluster joins if both together are within the limits. What came of it is looked at again in
    its turn, with the richer one of both neighbours outside.

    Args:
        state: Changed in place.
        richest: int32 (N,), as `cluster_edges` leaves it.
    """
    cluster, cluster_load, node_load, limit = map(_tensor, state)
    kernels.merge_clusters(cluster, cluster_load, _tensor(richest), node_load, limit)


def count_pairs(
    pairs: PairCounts, src: Array, dst: Array, cluster: Array, *, num_clusters: int
) -> None:
    """Count, for each pair of different clusters, the edges between them.

    When three quarters of the table are used, it keeps the heavier half of them all, and of those
    with the least count that is kept, those that a hash of the pair chooses.

    Args:
        pairs: Changed in place.
        src: int32 or int64 (n,).
        dst: As `src`.
        cluster: int32 (N,), in 0..num_clusters - 1.
        num_clusters: C.

    Raises:
        IndexError: An id or a cluster is out of range.
    """
    kernels.count_pairs(*map(_tensor, pairs), _ids(src), _ids(dst), _tensor(cluster), num_clusters)


def _tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        # Memory maps are often read-only, and only read here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def _ids(array: Array) -> Tensor:
    return _tensor(np.ascontiguousarray(array))  # columns of a table of edges lie apart


def _optional(array: Array | None) -> Tensor | None:
    return None if array is None else _tensor(array)
