"""A whole graph in memory: structure, features, labels and masks, validated once.

Everything is NumPy, so that datasets and partitioners work (and refuse bad input) without
loading torch.

Layout: CSR whose rows are destinations.

    edges  a->c  b->c  c->a          indptr  = [0, 1, 1, 3]
                                     indices = [2, 0, 1]
    row v lists the in-neighbours of v: row 0 (a) holds c; row 1 (b) nothing; row 2 (c) a and b
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gnn_dist.arrays import (
    INT32_LIMIT,
    as_bool,
    as_float,
    as_index,
    as_mask,
    as_targets,
    check_ascending,
    checked_indptr,
    describe,
    lacks_target,
    row_blocks,
)
from gnn_dist.errors import GraphError
from gnn_dist.features import CSRFeatures

__all__ = ["INT32_LIMIT", "CSRFeatures", "Graph", "edge_chunks", "graph_from_edges"]

Array = NDArray[Any]

MASK_NAMES = ("train_mask", "val_mask", "test_mask")
EDGE_NAMES = ("edge_id", "edge_weight", "edge_attr", "edge_type")


@dataclass(frozen=True, eq=False)
class Graph:
    """One homogeneous graph, checked when it is made and never changed afterwards.

    Attributes:
        indptr: int64 (N + 1,), offsets of the rows; a row is a destination.
        indices: (E,), sources, ascending inside a row; int32 while N < 2^31, else int64.
        x: Features, (N, F) of a floating dtype or `CSRFeatures`; None without features.
        y: Labels: int64 (N,) with -1 for none, or bool (N, C) for several labels a node. With
            `regression` numbers to predict: floating (N,) or (N, T), a row with NaN for none.
        train_mask: bool (N,), or (N, S) for S official splits. `val_mask` and `test_mask` alike.
        edge_id: int64 (E,), position of each edge in the user's edge list.
        edge_weight: Floating (E,).
        edge_attr: Floating (E, K).
        edge_type: Integer (E,).
        num_classes: C; found from `y` when not given; None with `regression`.
        regression: Whether `y` are numbers. Nothing is guessed from a floating dtype, in which
            class numbers are stored as well.
        name: The dataset's name, for messages and records.

    Raises:
        GraphError: An array has a wrong shape, dtype or value.

    Example:
        >>> graph = graph_from_edges([0, 1, 2], [2, 2, 0], num_nodes=3)
        >>> graph.indptr.tolist(), graph.indices.tolist()
        ([0, 1, 1, 3], [2, 0, 1])
    """

    indptr: Array
    indices: Array
    x: Array | CSRFeatures | None = None
    y: Array | None = None
    train_mask: Array | None = None
    val_mask: Array | None = None
    test_mask: Array | None = None
    edge_id: Array | None = None
    edge_weight: Array | None = None
    edge_attr: Array | None = None
    edge_type: Array | None = None
    num_classes: int | None = None
    regression: bool = field(default=False, kw_only=True)
    name: str = field(default="graph", kw_only=True)

    def __post_init__(self) -> None:
        _set(self, "indptr", checked_indptr(self.indptr, len(self.indices), "indptr"))
        _set(self, "indices", as_index(self.indices, self.num_nodes, "indices"))
        check_ascending(self.indptr, self.indices)
        self._check_features()
        self._check_labels()
        for name in MASK_NAMES:
            if self._has(name):
                mask = getattr(self, name)
                _set(self, name, as_mask(mask, self.num_nodes, name))
        self._check_splits()
        self._check_masked_labels()
        self._check_edge_data()

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E, the number of directed edges (an undirected edge counts twice)."""
        return len(self.indices)

    @property
    def num_features(self) -> int:
        """F, 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def task(self) -> str | None:
        """`multiclass`, `multilabel`, `regression`, or None without labels."""
        if self.y is None:
            return None
        if self.regression:
            return "regression"
        return "multiclass" if self.y.ndim == 1 else "multilabel"

    @property
    def num_splits(self) -> int:
        """How many official splits the masks hold; 0 without masks."""
        if self.train_mask is None:
            return 0
        return 1 if self.train_mask.ndim == 1 else int(self.train_mask.shape[1])

    @property
    def in_degree(self) -> Array:
        """int64 (N,), in-edges of each node."""
        return np.diff(self.indptr)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether each edge u -> v has its u <- v, as often and with equal weight."""
        import scipy.sparse

        # Edge positions as values, so that copies of an edge are kept apart and ordered.
        position = np.arange(self.num_edges)
        shape = (self.num_nodes, self.num_nodes)
        transpose = scipy.sparse.csr_array((position, self.indices, self.indptr), shape).tocsc()
        if not np.array_equal(transpose.indptr, self.indptr):
            return False
        if not np.array_equal(transpose.indices, self.indices):
            return False
        if self.edge_weight is None:
            return True
        return np.array_equal(self.edge_weight[transpose.data], self.edge_weight)

    def edges(self) -> tuple[Array, Array]:
        """Return (src, dst), both (E,), in CSR order."""
        dst = np.repeat(np.arange(self.num_nodes, dtype=self.indices.dtype), self.in_degree)
        return self.indices, dst

    def replace(self, **changes: Any) -> "Graph":  # noqa: ANN401 - any field
        """Return a copy with some fields changed, checked again."""
        return replace(self, **changes)

    def _check_features(self) -> None:
        if self.x is None:
            return
        x = self.x if isinstance(self.x, CSRFeatures) else np.asarray(self.x)
        if len(x.shape) != 2 or x.shape[0] != self.num_nodes:
            raise GraphError(
                f"x must have shape (num_nodes={self.num_nodes}, F), got {tuple(x.shape)}"
            )
        _set(self, "x", x if isinstance(x, CSRFeatures) else as_float(x, "x"))

    def _check_labels(self) -> None:
        if self.y is None:
            return
        y = np.asarray(self.y)
        if y.ndim == 2 and y.shape[1] == 1:  # the Open Graph Benchmark's layout
            y = y[:, 0]
        if y.ndim not in (1, 2) or len(y) != self.num_nodes:
            raise GraphError(
                f"y must have shape (num_nodes={self.num_nodes},) or (num_nodes, C), got {y.shape}"
            )
        if self.regression:
            _set(self, "y", as_targets(y))
            _set(self, "num_classes", None)
            return
        if y.ndim == 1:
            y, found = _class_labels(y)
        else:
            y, found = (
                as_bool(y, "y, without regression=True, with several labels a node"),
                y.shape[1],
            )
        classes = found if self.num_classes is None else self.num_classes
        if y.ndim == 2 and found != classes:
            raise GraphError(
                f"y must have one column per class (num_classes={classes}), got {found} columns"
            )
        if found > classes:
            where = int(np.argmax(y >= classes))
            raise GraphError(
                f"labels must lie in 0..{classes - 1} (num_classes={classes}), got {y[where]} "
                f"at node {where}"
            )
        _set(self, "y", y)
        _set(self, "num_classes", int(classes))

    def _check_splits(self) -> None:
        shapes = {name: getattr(self, name).shape for name in MASK_NAMES if self._has(name)}
        if len(set(shapes.values())) > 1:
            raise GraphError(f"the masks must hold equally many splits, got shapes {shapes}")

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None

    def _check_masked_labels(self) -> None:
        if self.y is None or self.task == "multilabel":
            return
        unlabelled = self.y < 0 if self.task == "multiclass" else lacks_target(self.y)
        for name in MASK_NAMES:
            mask = getattr(self, name)
            if mask is None:
                continue
            inside = mask if mask.ndim == 1 else mask.any(axis=1)
            bad = np.flatnonzero(inside & unlabelled)
            if len(bad):
                raise GraphError(
                    f"{name} must hold labelled nodes only, got {len(bad)} without a label, "
                    f"the first node {bad[0]}"
                )

    def _check_edge_data(self) -> None:
        for name in EDGE_NAMES:
            if self._has(name):
                _set(self, name, _edge_data(getattr(self, name), self.num_edges, name))


def graph_from_edges(
    src: ArrayLike,
    dst: ArrayLike,
    *,
    num_nodes: int | None = None,
    symmetrize: bool = False,
    **data: Any,  # noqa: ANN401 - the fields of Graph
) -> Graph:
    """Build a graph from an edge list.

    Args:
        src: Integer (E,), where each edge starts.
        dst: Integer (E,), where it ends: dst aggregates from src.
        num_nodes: N. Without it N is taken from `x` or `y` in `data`, then from the largest id.
        symmetrize: Add the reverse of every edge and drop the copies this makes (and no other
            repeats: none stay), so that the structure is symmetric. Edge data goes with its edge.
        **data: Other fields of `Graph`; edge data in the order of the edge list. `edge_id` is
            filled in when there is edge data.

    Returns:
        The graph, each row's sources ascending, copies of an edge in the given order.

    Raises:
        GraphError: An edge has an end that is no node, or an array does not fit.
    """
    src_id, dst_id = _as_edge_ends(src, dst)
    num_nodes = _infer_num_nodes(num_nodes, data, src_id, dst_id)
    if num_nodes < 0:
        raise GraphError(f"num_nodes must be at least 0, got {num_nodes}")
    _check_ends(src_id, dst_id, num_nodes)
    edge_data = {k: np.asarray(data.pop(k)) for k in EDGE_NAMES if data.get(k) is not None}
    for name, values in edge_data.items():
        if len(values) != len(src_id):
            raise GraphError(
                f"{name} must have one row per edge ({len(src_id)}), got {len(values)}"
            )
    if edge_data and "edge_id" not in edge_data:
        edge_data["edge_id"] = np.arange(len(src_id), dtype=np.int64)
    if symmetrize:
        both_ways = np.concatenate([src_id, dst_id]), np.concatenate([dst_id, src_id])
        order = _unique_edges(*both_ways, num_nodes)
        src_id, dst_id = both_ways
        edge_data = {k: np.concatenate([v, v])[order] for k, v in edge_data.items()}
    else:
        order = np.lexsort((src_id, dst_id))
        edge_data = {k: v[order] for k, v in edge_data.items()}
    counts = np.bincount(dst_id[order], minlength=num_nodes)
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    data.update(edge_data)
    return Graph(indptr, src_id[order], **data)


def edge_chunks(graph: Graph) -> Iterator[tuple[Array, Array]]:
    """Yield (src, dst) of consecutive edges in CSR order, about `CHECK_CHUNK` edges at a time.

    All blocks together are `graph.edges()`, which needs memory for every edge at once.
    """
    for rows in row_blocks(graph.in_degree):
        start, stop = graph.indptr[rows.start], graph.indptr[rows.stop]
        counts = np.diff(graph.indptr[rows.start : rows.stop + 1])
        dst = np.arange(rows.start, rows.stop, dtype=graph.indices.dtype)
        yield graph.indices[start:stop], np.repeat(dst, counts)


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)


def _edge_data(values: Array, num_edges: int, name: str) -> Array:
    """Check one kind of edge data; `edge_attr` of one column may come as a vector."""
    values = np.asarray(values)
    if name == "edge_attr" and values.ndim == 1:
        values = values[:, None]
    if values.ndim != (2 if name == "edge_attr" else 1) or len(values) != num_edges:
        raise GraphError(
            f"{name} must have one row per edge ({num_edges}), got shape {values.shape}"
        )
    if name in ("edge_weight", "edge_attr"):
        return as_float(values, name)
    if values.dtype.kind not in "iu":
        raise GraphError(f"{name} must hold integers, got {describe(values)}")
    return values.astype(np.int64, copy=False) if name == "edge_id" else values


def _class_labels(y: Array) -> tuple[Array, int]:
    """Return int64 labels and the number of classes seen; NaN in a float vector means none."""
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
        odd = np.flatnonzero(~np.isfinite(y) | (y != np.floor(y)))
        if len(odd):
            raise GraphError(
                f"y must hold whole class numbers, got {y[odd[0]]} at node {odd[0]}: numbers to "
                "predict need regression=True"
            )
    elif y.dtype.kind not in "iub":
        raise GraphError(f"y must hold class numbers, got {describe(y)}")
    y = y.astype(np.int64, copy=False)
    low = np.flatnonzero(y < -1)
    if len(low):
        raise GraphError(
            f"labels must be class numbers from 0, or -1 for none, got {y[low[0]]} at node {low[0]}"
        )
    return y, int(y.max(initial=-1)) + 1


def _as_edge_ends(src: ArrayLike, dst: ArrayLike) -> tuple[Array, Array]:
    ends = []
    for name, values in (("src", src), ("dst", dst)):
        array = np.asarray(values)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array)):
            raise GraphError(f"{name} must be an integer vector, got {describe(array)}")
        ends.append(array.astype(np.int64, copy=False))
    if len(ends[0]) != len(ends[1]):
        raise GraphError(f"src and dst must be equally long, got {len(ends[0])} and {len(ends[1])}")
    return ends[0], ends[1]


def _infer_num_nodes(given: int | None, data: dict[str, Any], src: Array, dst: Array) -> int:
    if given is not None:
        return given
    for name in ("x", "y", *MASK_NAMES):
        if data.get(name) is not None:
            values = data[name]
            return int(values.shape[0]) if hasattr(values, "shape") else len(values)
    return int(max(src.max(initial=-1), dst.max(initial=-1))) + 1


def _check_ends(src: Array, dst: Array, num_nodes: int) -> None:
    for values in (src, dst):
        bad = np.flatnonzero((values < 0) | (values >= num_nodes))
        if len(bad):
            edge = int(bad[0])
            raise GraphError(
                f"edge {edge} ({src[edge]} -> {dst[edge]}) ends at a node that does not exist: "
                f"ids must lie in 0..{num_nodes - 1} (num_nodes={num_nodes})"
            )


def _unique_edges(src: Array, dst: Array, num_nodes: int) -> Array:
    """Return positions of the first copy of each edge, ordered by (dst, src)."""
    order = np.lexsort((src, dst))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(src[order]) != 0) | (np.diff(dst[order]) != 0)
    return order[first]


def graph_fields() -> tuple[str, ...]:
    """Names of all fields of `Graph`."""
    return tuple(f.name for f in fields(Graph))
