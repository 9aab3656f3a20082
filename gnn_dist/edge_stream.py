"""Graphs that need not fit in memory: a restartable stream of edges, and a CSR in files.

    EdgeStream     edges in any order, chunk by chunk, as often as needed
    GraphOnDisk    a `Graph` whose arrays are mapped files; what an external sort makes of a stream

Both are NumPy alone, so that data can be opened, and refused, without loading torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import INT32_LIMIT
from gnn_dist.errors import GraphError
from gnn_dist.graph import MASK_NAMES, Graph

__all__ = ["CHUNK_EDGES", "EdgeStream", "GraphOnDisk", "first_bad_edge", "id_dtype", "stream_of"]

Array = NDArray[Any]
EdgeChunks = Iterator[tuple[Array, Array]]

CHUNK_EDGES = 1 << 20
NODE_DATA = ("x", "y", *MASK_NAMES, "num_classes")


@dataclass(frozen=True, eq=False)
class EdgeStream:
    """A source of edges that can be read any number of times, in the same order each time.

    Node data, where there are any, are arrays as `Graph` takes them, usually memory maps.

    Attributes:
        read: Called with the largest length wanted, starts a pass: an iterator over (src, dst),
            integer vectors of equal length.
        num_nodes: N.
        num_edges: E, directed edges in one pass.
        x: (N, F), or None. `y`, `train_mask`, `val_mask`, `test_mask`, `num_classes` likewise.
        name: The dataset's name, for messages and records.
        version: Differs where the data do (sizes and times of files, say), so that work begun on
            other data is not continued.

    Raises:
        GraphError: A count is negative, or node data are not of N rows.

    Example:
        >>> edges = np.array([[0, 1, 2], [2, 2, 0]])
        >>> stream = EdgeStream(lambda size: iter([(edges[0], edges[1])]), 3, 3)
        >>> [(src.tolist(), dst.tolist()) for src, dst in stream.chunks()]
        [([0, 1, 2], [2, 2, 0])]
    """

    read: Callable[[int], EdgeChunks]
    num_nodes: int
    num_edges: int
    x: Array | None = None
    y: Array | None = None
    train_mask: Array | None = None
    val_mask: Array | None = None
    test_mask: Array | None = None
    num_classes: int | None = None
    name: str = field(default="stream", kw_only=True)
    version: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        if self.num_nodes < 0 or self.num_edges < 0:
            raise GraphError(
                f"{self.name}: num_nodes and num_edges must be at least 0, got {self.num_nodes} "
                f"and {self.num_edges}"
            )
        for name in ("x", "y", *MASK_NAMES):
            values = getattr(self, name)
            if values is not None and len(values) != self.num_nodes:
                raise GraphError(
                    f"{self.name}: {name} must have num_nodes={self.num_nodes} rows, got "
                    f"{len(values)}"
                )

    @property
    def node_data(self) -> dict[str, Any]:
        """The fields of `Graph` that are known, beside the structure."""
        return {n: getattr(self, n) for n in NODE_DATA if getattr(self, n) is not None}

    def chunks(self, chunk_edges: int = CHUNK_EDGES) -> EdgeChunks:
        """Yield (src, dst), int32 or int64 (k,), of all edges in order; k is at most `chunk_edges`.

        Raises:
            GraphError: `read` yields what are no edges of N nodes, or not E of them.
        """
        if chunk_edges < 1:
            raise GraphError(f"chunk_edges must be at least 1, got {chunk_edges}")
        seen = 0
        for src, dst in self.read(chunk_edges):
            self._check(src, dst, seen)
            for start in range(0, len(src), chunk_edges):
                yield src[start : start + chunk_edges], dst[start : start + chunk_edges]
            seen += len(src)
        if seen != self.num_edges:
            raise GraphError(
                f"{self.name} must yield num_edges={self.num_edges} edges, got {seen}: the source "
                "changed since it was opened"
            )

    def _check(self, src: Array, dst: Array, seen: int) -> None:
        for ends in (src, dst):
            if ends.ndim != 1 or ends.dtype not in (np.int32, np.int64) or len(ends) != len(src):
                raise GraphError(
                    f"{self.name} must yield int32 or int64 vectors of equal length, got "
                    f"{src.shape} of {src.dtype} and {dst.shape} of {dst.dtype}"
                )
        bad = first_bad_edge(src, dst, self.num_nodes)
        if bad is not None:
            raise GraphError(
                f"{self.name}, edge {seen + bad} ({src[bad]} -> {dst[bad]}): ids must lie in "
                f"0..{self.num_nodes - 1} (num_nodes={self.num_nodes})"
            )


@dataclass(frozen=True, eq=False)
class GraphOnDisk(Graph):
    """A graph whose arrays are files mapped into memory: usable as a `Graph`, one byte at a time.

    Nothing is checked again, since all of it would have to be read: only what an external sort
    has written is opened as one.

    Attributes:
        symmetric: Whether each edge u -> v has its u <- v, as often.
    """

    symmetric: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check nothing."""

    @property
    def is_symmetric(self) -> bool:
        """Whether each edge u -> v has its u <- v, as often; found when the files were written."""
        return self.symmetric


def stream_of(graph: Graph) -> EdgeStream:
    """Return a graph's edges as a stream, in CSR order; node data are shared.

    Edge data stay behind. Features in CSR are left out.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2], [2, 2, 0])
        >>> [(src.tolist(), dst.tolist()) for src, dst in stream_of(graph).chunks(2)]
        [([2, 0], [0, 2]), ([1], [2])]
    """
    names = [n for n in NODE_DATA if isinstance(getattr(graph, n), np.ndarray | int)]
    return EdgeStream(
        partial(_csr_chunks, graph),
        graph.num_nodes,
        graph.num_edges,
        name=graph.name,
        **{n: getattr(graph, n) for n in names},
    )


def id_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return the dtype of node ids in a whole graph: int32 while N < 2^31, else int64."""
    return np.dtype(np.int32 if num_nodes < INT32_LIMIT else np.int64)


def first_bad_edge(src: Array, dst: Array, num_nodes: int) -> int | None:
    """Return the position of the first edge that has an end outside 0..N-1, or None."""
    if not len(src):
        return None
    if min(src.min(), dst.min()) >= 0 and max(src.max(), dst.max()) < num_nodes:
        return None
    bad = (src < 0) | (src >= num_nodes) | (dst < 0) | (dst >= num_nodes)
    return int(np.argmax(bad))


def _csr_chunks(graph: Graph, chunk_edges: int) -> EdgeChunks:
    for start in range(0, graph.num_edges, chunk_edges):
        stop = min(start + chunk_edges, graph.num_edges)
        first = int(np.searchsorted(graph.indptr, start, side="right")) - 1
        last = int(np.searchsorted(graph.indptr, stop, side="left"))
        counts = np.diff(np.clip(graph.indptr[first : last + 1], start, stop))
        dst = np.repeat(np.arange(first, last, dtype=graph.indices.dtype), counts)
        yield graph.indices[start:stop], dst
