"""Recursive-matrix graphs: skewed degrees at any size, for benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.base import DatasetInfo
from gnn_dist.datasets.options import check_options, describe_options, full_name, option
from gnn_dist.errors import DatasetError
from gnn_dist.graph import Graph, graph_from_edges

__all__ = ["Rmat"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Rmat:
    """Graph of 2^scale nodes whose edges fall into quadrants with odds a, b, c and 1 - a - b - c.

    Node ids are shuffled, so that they say nothing about degrees. Self-loops and repeats are
    dropped. Features and labels are random: good for measuring speed, not accuracy. No split.

    Source: Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining" (2004),
    section 3; O(E scale) time.

    Attributes:
        scale: Logarithm of N to base 2.
        degree: Edges drawn per node.
        a: Odds of the quadrant (low source, low destination).
        b: Odds of (low source, high destination).
        c: Odds of (high source, low destination).
        features: F.
        classes: C.
        symmetric: Add the reverse of every edge.

    Raises:
        DatasetError: An option is out of its range.

    Example:
        >>> Rmat(scale=5).load(None, seed=0, directed=False).num_nodes
        32
    """

    scale: int = option(12, 0, 30)
    degree: float = option(8.0, 0, 10_000)
    a: float = option(0.57, 0, 1)
    b: float = option(0.19, 0, 1)
    c: float = option(0.19, 0, 1)
    features: int = option(32, 1, 1_000_000)
    classes: int = option(8, 1, 1_000_000)
    symmetric: bool = option(True)

    def __post_init__(self) -> None:
        check_options(self, "rmat")
        if self.a + self.b + self.c > 1 + 1e-9:  # room for rounding
            raise DatasetError(
                "options 'a', 'b' and 'c' of rmat must add up to at most 1, got "
                f"{self.a:g} + {self.b:g} + {self.c:g}"
            )

    @property
    def info(self) -> DatasetInfo:
        """What is known without generating."""
        return DatasetInfo(
            name="rmat",
            source="synthetic: recursive matrix, random features and labels",
            num_nodes=1 << self.scale,
            num_edges=None,
            num_features=self.features,
            num_classes=self.classes,
            licence="none needed",
            obtained="generated from the seed",
            options=describe_options(self),
        )

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Generate the graph; the same for a seed on every machine."""
        rng = np.random.Generator(np.random.PCG64(seed))
        num_nodes = 1 << self.scale
        src, dst = self._draw_edges(rng, round(num_nodes * self.degree))
        symmetric = self.symmetric and not directed
        if not symmetric:  # symmetrising drops repeats by itself
            dst, src = np.divmod(np.unique(dst * num_nodes + src), num_nodes)
        return graph_from_edges(
            src,
            dst,
            num_nodes=num_nodes,
            symmetrize=symmetric,
            x=rng.standard_normal((num_nodes, self.features), np.float32),
            y=rng.integers(self.classes, size=num_nodes),
            num_classes=self.classes,
            name=full_name(self, "rmat"),
        )

    def _draw_edges(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Choose a quadrant per edge and level, the highest bit of the ids first."""
        src, dst = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for _ in range(self.scale):
            draw = rng.random(count)
            low_low, low_high, high_low = np.cumsum([self.a, self.b, self.c])
            src_high = draw >= low_high
            dst_high = ((draw >= low_low) & ~src_high) | (draw >= high_low)
            src = 2 * src + src_high
            dst = 2 * dst + dst_high
        shuffle = rng.permutation(1 << self.scale)
        proper = src != dst
        return shuffle[src[proper]], shuffle[dst[proper]]
