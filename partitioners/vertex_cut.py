"""What vertex-cut partitioners share: a stream of edges, its degrees, and roots at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph, edge_chunks

if TYPE_CHECKING:
    from torch import Tensor

    from gnn_dist.ops.edge_parts import EdgeAssigner

__all__ = ["EdgeChunk", "EdgeSource", "VertexCutStream", "edge_limit", "open_stream"]

Array = NDArray[Any]


class EdgeSource(Protocol):
    """Edges that can be gone through several times, always in the same order.

    Attributes:
        num_nodes: N.
        num_edges: E.
    """

    @property
    def num_nodes(self) -> int:
        """N."""

    @property
    def num_edges(self) -> int:
        """E."""

    def chunks(self) -> Iterator[tuple[Array, Array]]:
        """Yield (src, dst), int32 or int64 vectors of equal length."""


class EdgeChunk(NamedTuple):
    """Consecutive edges of a stream.

    Attributes:
        first: Number of the first of them.
        src: int32 or int64 (e,).
        dst: Like `src`.
        parts: int32 (e,), to be filled in.
    """

    first: int
    src: "Tensor"
    dst: "Tensor"
    parts: "Tensor"


@dataclass(frozen=True, eq=False)
class VertexCutStream:
    """A pass over the edges for every partitioner that assigns them one after the other.

    Attributes:
        source: The edges.
        assigner: What has been assigned so far.
        parts: int32 (E,), the part of each edge, by its number in the stream.
    """

    source: Graph | EdgeSource
    assigner: "EdgeAssigner"
    parts: "Tensor"

    def chunks(self) -> Iterator[EdgeChunk]:
        """Go through the edges once.

        Raises:
            PartitionError: There are more or fewer edges than the source says.
        """
        first, num_edges = 0, self.source.num_edges
        for src, dst in _tensor_chunks(self.source):
            last = first + src.numel()
            if last <= num_edges:
                yield EdgeChunk(first, src, dst, self.parts[first:last])
            first = last
        if first != num_edges:
            raise PartitionError(
                f"a pass over the edges must yield num_edges={num_edges} of them, got {first}"
            )

    def finish(self) -> EdgePartition:
        """Choose the roots and return the partition."""
        import torch

        from gnn_dist.ops.edge_parts import choose_roots

        mask = getattr(self.source, "train_mask", None)
        if mask is not None:
            first_split = mask if mask.ndim == 1 else mask[:, 0]
            mask = torch.from_numpy(np.array(first_split, bool))
        assigner = self.assigner
        root = choose_roots(assigner.clones, mask, num_parts=assigner.num_parts, seed=assigner.seed)
        return EdgePartition(self.parts.numpy(), root.numpy(), assigner.num_parts)


def open_stream(
    source: Graph | EdgeSource, num_parts: int, *, imbalance: float | None, seed: int
) -> VertexCutStream:
    """Count degrees, in one pass, and prepare to assign edges.

    Args:
        source: The edges.
        num_parts: P.
        imbalance: How far a part may be above the mean number of edges, as a fraction; None for
            as far as it comes to.
        seed: Of what ties are broken by.
    """
    import torch

    from gnn_dist.ops.edge_parts import EdgeAssigner, count_ends

    degree = torch.zeros(source.num_nodes, dtype=torch.int32)
    for src, dst in _tensor_chunks(source):
        count_ends(degree, src, dst)
    num_edges = source.num_edges
    limit = num_edges if imbalance is None else edge_limit(num_edges, num_parts, imbalance)
    assigner = EdgeAssigner.empty(degree, num_parts=num_parts, limit=limit, seed=seed)
    return VertexCutStream(source, assigner, torch.empty(num_edges, dtype=torch.int32))


def edge_limit(num_edges: int, num_parts: int, imbalance: float) -> int:
    """Return the most edges of a part: (1 + imbalance) times the mean, or the mean rounded up.

    Example:
        >>> edge_limit(1000, 4, 0.02), edge_limit(10, 4, 0.02)
        (255, 3)
    """
    return max(-(-num_edges // num_parts), int((1 + imbalance) * num_edges / num_parts))


def _tensor_chunks(source: Graph | EdgeSource) -> Iterator[tuple["Tensor", "Tensor"]]:
    chunks = edge_chunks(source) if isinstance(source, Graph) else source.chunks()
    for src, dst in chunks:
        yield _tensor(src), _tensor(dst)


def _tensor(values: Array) -> "Tensor":
    """Return a vector as a tensor; copied if it is read-only or not contiguous."""
    import torch

    own = np.ascontiguousarray(values)
    return torch.from_numpy(own if own.flags.writeable else own.copy())
