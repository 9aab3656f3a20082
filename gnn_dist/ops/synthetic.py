"""Edges of random graphs, drawn from (seed, edge number): the same in any pieces."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels

__all__ = ["BlockModelEdges", "RecursiveMatrixEdges"]

Array = NDArray[Any]

RMAT_SITE, SBM_SITE = 0x726D6174, 0x73626D


@dataclass(frozen=True)
class RecursiveMatrixEdges:
    """Edges of a recursive matrix, self-loops and repeats included.

    Source: Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining" (2004),
    section 3. O(scale) time an edge, no memory. Ids are shuffled by a keyed bijection.

    Attributes:
        scale: Logarithm of N to base 2, at most 30.
        draws: Edges drawn.
        odds: Of the quadrants (low source, low destination), (low, high), (high, low).
        seed: Chooses the graph.
        mirrored: Put its reverse behind each edge.

    Example:
        >>> edges = RecursiveMatrixEdges(scale=4, draws=10, seed=1)
        >>> sum(len(src) for src, dst in edges.read(4))
        10
    """

    site: ClassVar[int] = RMAT_SITE
    scale: int
    draws: int
    odds: tuple[float, float, float] = (0.57, 0.19, 0.19)
    seed: int = 0
    mirrored: bool = False

    @property
    def num_edges(self) -> int:
        """E, directed edges."""
        return self.draws * (2 if self.mirrored else 1)

    def read(self, chunk_edges: int) -> Iterator[tuple[Array, Array]]:
        """Yield (src, dst), int32, chunk by chunk."""
        a, b, c = self.odds
        limits = [min(2**32, round(odds * 2**32)) for odds in (a, a + b, a + b + c)]
        key = DrawKey(self.seed, 0, self.site).value
        for first, count in _runs(self.draws, chunk_edges, self.mirrored):
            src, dst = kernels.rmat_edges(self.scale, *limits, key, first, count, self.mirrored)
            yield src.numpy(), dst.numpy()


@dataclass(frozen=True)
class BlockModelEdges:
    """Edges of a stochastic block model with equal blocks, self-loops and repeats included.

    Source: Holland, Laskey and Leinhardt, "Stochastic blockmodels: First steps" (1983), edges drawn
    one by one. O(1) time an edge, no memory. Ids are shuffled by a keyed bijection.

    Attributes:
        nodes: N.
        blocks: Number of blocks.
        draws: Edges drawn.
        inside: Share of edges inside a block.
        seed: Chooses the graph.
        mirrored: Put its reverse behind each edge.
    """

    site: ClassVar[int] = SBM_SITE
    nodes: int
    blocks: int
    draws: int
    inside: float
    seed: int = 0
    mirrored: bool = False

    @property
    def num_edges(self) -> int:
        """E, directed edges."""
        return self.draws * (2 if self.mirrored else 1)

    @property
    def labels(self) -> Array:
        """int64 (N,), the block of each node."""
        key = DrawKey(self.seed, 0, self.site).value
        found: Array = kernels.sbm_blocks(self.nodes, self.blocks, key).numpy()
        return found

    def read(self, chunk_edges: int) -> Iterator[tuple[Array, Array]]:
        """Yield (src, dst), int32, chunk by chunk."""
        inside = min(2**63 - 1, round(self.inside * 2**63))
        key = DrawKey(self.seed, 0, self.site).value
        for first, count in _runs(self.draws, chunk_edges, self.mirrored):
            src, dst = kernels.sbm_edges(
                self.nodes, self.blocks, inside, key, first, count, self.mirrored
            )
            yield src.numpy(), dst.numpy()


def _runs(draws: int, chunk_edges: int, mirrored: bool) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of consecutive draws that make at most `chunk_edges` edges, if any."""
    step = max(1, chunk_edges // (2 if mirrored else 1))
    for first in range(0, draws, step):
        yield first, min(step, draws - first)
