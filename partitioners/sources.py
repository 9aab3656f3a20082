"""What streaming partitioners read: rows, in memory or on disk, or edges in any order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph, edge_chunks

if TYPE_CHECKING:
    from gnn_dist.ops.streaming import Rows

__all__ = ["EdgeSource", "RowSource", "Source", "degrees", "edges_of", "rows_of"]

Array = NDArray[Any]

CHUNK_EDGES = 1 << 20


@runtime_checkable
class RowSource(Protocol):
    """A CSR structure whose rows are destinations; its arrays may be memory maps.

    Attributes:
        num_nodes: N.
        num_edges: E.
        indptr: int64 (N + 1,).
        indices: int32 or int64 (E,), sources.
        in_degree: int64 (N,).
    """

    num_nodes: int
    num_edges: int
    indptr: Array
    indices: Array
    in_degree: Array


@runtime_checkable
class EdgeSource(Protocol):
    """Edges in chunks, which come in the same order each time.

    Attributes:
        num_nodes: N.
        num_edges: E.
    """

    num_nodes: int
    num_edges: int

    def chunks(self, chunk_edges: int = CHUNK_EDGES) -> Iterator[tuple[Array, Array]]:
        """Yield (src, dst), int32 or int64."""


Source = Graph | RowSource | EdgeSource


@dataclass(frozen=True, eq=False)
class Degrees:
    """Degrees of a source's nodes, and its masks: what weights are made from.

    Attributes:
        in_degree: int64 (N,).
        degree: int64 (N,), edges of both directions.
        train_mask: bool (N,) or (N, S), or None. `val_mask` and `test_mask` alike.
    """

    in_degree: Array
    degree: Array
    train_mask: Array | None = None
    val_mask: Array | None = None
    test_mask: Array | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.degree)


def rows_of(source: Source, method: str) -> "Rows":
    """Return the rows of a source.

    Raises:
        PartitionError: It has edges alone.
    """
    from gnn_dist.ops.streaming import Rows

    if not isinstance(source, RowSource):
        raise PartitionError(
            f"method {method!r} must have edges grouped by destination, got a stream of "
            f"{source.num_edges} edges: group them first, or use --method spring"
        )
    return Rows(source.indptr, source.indices)


def edges_of(source: Source) -> Iterator[tuple[Array, Array]]:
    """Yield (src, dst) of all edges, some at a time."""
    if isinstance(source, EdgeSource):
        yield from source.chunks(CHUNK_EDGES)
    else:
        yield from edge_chunks(source)  # type: ignore[arg-type]


def degrees(source: Source) -> Degrees:
    """Count the edges of each node: one pass, 16 bytes a node."""
    from gnn_dist.ops.streaming import count_ids

    masks = {f"{s}_mask": getattr(source, f"{s}_mask", None) for s in ("train", "val", "test")}
    known = getattr(source, "in_degree", None)
    in_degree = np.zeros(source.num_nodes, np.int64) if known is None else known
    out_degree = np.zeros(source.num_nodes, np.int64)
    for src, dst in edges_of(source):
        count_ids(out_degree, src)
        if known is None:
            count_ids(in_degree, dst)
    out_degree += in_degree
    return Degrees(in_degree, out_degree, **masks)
