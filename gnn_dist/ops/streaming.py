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
    "node_records",
    "place_nodes",
]

Array = NDArray[Any]

RULES = ("ldg", "fennel")  # in the order of the operator's numbers for them
PIN_COLUMNS = 8  # pins are counted eight parts at a time
CACHE_LINE = 64  # bytes


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
        nodes: `node_records` (N,), by node. A cluster has the number of one of its first members,
            and its loads are in the record of that number.
        limit: int64 (1 + K,), what a cluster may hold: volume (the sum of degrees), and weights.
    """

    nodes: Array
    limit: Array

    @classmethod
    def single(cls, degree: Array, weights: Array, limit: Array) -> "ClusterState":
        """Return clusters of one node each, with degrees (N,) and weights (N, K)."""
        nodes = node_records(len(degree), len(limit))
        nodes["cluster"] = np.arange(len(degree))
        nodes["richest"] = nodes["richest_degree"] = -1
        nodes["own"][:, 0] = degree
        nodes["own"][:, 1:] = weights
        nodes["load"] = nodes["own"]
        return cls(nodes, limit)


class PairCounts(NamedTuple):
    """A hash table of how many edges pairs of clusters share.

    Attributes:
        slots: int64 (S,), S a power of two: 0 where free, else a pair, which is lower cluster * C +
            higher cluster, times 2^b, plus its number of edges, at most 2^b - 1; b as `count_bits`.
        used: int64 (1,), slots in use.
        num_clusters: C, at most 2^24.
    """

    slots: Array
    used: Array
    num_clusters: int

    @classmethod
    def empty(cls, most_pairs: int, num_clusters: int) -> "PairCounts":
        """Return a table that holds at least half of `most_pairs` of the heaviest pairs."""
        size = 2 << max(3, (most_pairs - 1).bit_length())
        slots = np.empty(size, np.int64)  # in huge pages, which np.zeros does not ask for
        slots[:] = 0
        return cls(slots, np.zeros(1, np.int64), num_clusters)

    @property
    def count_bits(self) -> int:
        """How many bits of a slot count edges: those that a pair leaves of 63."""
        return 63 - (self.num_clusters**2 - 1).bit_length()

    def counted(self) -> tuple[Array, Array]:
        """Return the pairs that there are, int64 (k,), and their numbers of edges, int64 (k,)."""
        taken = self.slots[self.slots != 0]
        return taken >> self.count_bits, taken & ((1 << self.count_bits) - 1)


def node_records(num_nodes: int, num_loads: int) -> Array:
    """Return uninitialised records of nodes: what clustering knows of each, in one place.

    An edge has to do with the records of both ends and of both clusters; each is a cache miss where
    the edges come in random order, so records of up to 64 bytes do not cross a border of a line.

    Args:
        num_nodes: N.
        num_loads: L.

    Returns:
        (N,), with the fields `cluster`, int32; `richest`, int32, its source of highest degree, -1
        for none; `richest_degree`, int64, -1 for none; `own`, int64 (L,), what the node adds to its
        cluster's loads; `load`, int64 (L,), those of the cluster of the record's number.
    """
    loads = (np.int64, (num_loads,))
    dtype = np.dtype(
        [
            ("cluster", np.int32),
            ("richest", np.int32),
            ("richest_degree", np.int64),
            ("own", *loads),
            ("load", *loads),
        ]
    )
    raw = np.empty(num_nodes * dtype.itemsize + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    return raw[start : start + num_nodes * dtype.itemsize].view(dtype)


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
    state: ClusterState, src: Array, dst: Array, *, richest: bool = False, besides: bool = False
) -> None:
    """Move ends of edges into the cluster of the other end, edge by edge.

    The end whose cluster has the lower volume moves, of equals the source, if the other cluster has
    room for it.

    Args:
        state: Changed in place.
        src: int32 or int64 (n,).
        dst: As `src`.
        richest: Whether to note for each destination its source of highest degree so far.
        besides: Whether to compare what clusters have besides the end.

    Raises:
        IndexError: An id or a cluster is out of range.
    """
    nodes, limit = _records(state.nodes), _tensor(state.limit)
    kernels.cluster_edges(nodes, _ids(src), _ids(dst), limit, richest, besides)


def merge_clusters(state: ClusterState) -> None:
    """Join clusters, the least full first, to that of the richest neighbour of their members.

    A cluster joins if both together are within the limits. What came of it is looked at again in
    its turn, with the richer one of both neighbours outside.

    Args:
        state: Changed in place. Its nodes know their richest sources.

    Raises:
        IndexError: A cluster or a richest source is out of range.
        ValueError: A limit is not positive.
    """
    kernels.merge_clusters(_records(state.nodes), _tensor(state.limit))


def count_pairs(pairs: PairCounts, src: Array, dst: Array, cluster: Array) -> None:
    """Count, for each pair of different clusters, the edges between them.

    When three eighths of the slots are used, it keeps the heavier pairs, as many as fill a quarter,
    and of those with the least count that is kept, those that a hash of the pair chooses.

    Args:
        pairs: Changed in place.
        src: int32 or int64 (n,).
        dst: As `src`.
        cluster: int32 (N,), in 0..C - 1.

    Raises:
        IndexError: An id or a cluster is out of range.
    """
    state = _tensor(pairs.slots), _tensor(pairs.used)
    kernels.count_pairs(*state, _ids(src), _ids(dst), _tensor(cluster), pairs.num_clusters)


def _tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        # Memory maps are often read-only, and only read here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))


def _records(nodes: Array) -> Tensor:
    """Return records as int64 (N, W), which share their memory."""
    return _tensor(nodes.view(np.int64).reshape(len(nodes), nodes.itemsize // 8))


def _ids(array: Array) -> Tensor:
    return _tensor(np.ascontiguousarray(array))  # columns of a table of edges lie apart


def _optional(array: Array | None) -> Tensor | None:
    return None if array is None else _tensor(array)
