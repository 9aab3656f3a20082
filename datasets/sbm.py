"""A stochastic block model with noisy class features: the stand-in for a real dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.base import DatasetInfo
from gnn_dist.datasets.options import check_options, describe_options, full_name, option
from gnn_dist.errors import DatasetError
from gnn_dist.graph import INT32_LIMIT, Graph, graph_from_edges

__all__ = ["Sbm"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Sbm:
    """Undirected graph of equally large blocks; a node's label is its block. No split.

    Features are the block's mean, drawn from N(0, 1), plus noise. At the defaults a node's own
    features tell its block 6 times in 10, and those of its neighbourhood nearly always.

    Source: Holland, Laskey and Leinhardt, "Stochastic blockmodels: First steps" (1983), with the
    edges drawn one by one, O(N + E), in place of one trial per pair of nodes.

    Attributes:
        nodes: N.
        blocks: Number of blocks, which is C.
        degree_in: Mean number of neighbours inside the own block, before repeats are dropped.
        degree_out: Mean number of neighbours in other blocks, before repeats are dropped.
        features: F.
        noise: Standard deviation of the noise.

    Raises:
        DatasetError: An option is out of its range.

    Example:
        >>> Sbm(nodes=100, blocks=4).load(None, seed=0, directed=False).num_classes
        4
    """

    nodes: int = option(10_000, 1, INT32_LIMIT - 1)
    blocks: int = option(16, 1, 1_000_000)
    degree_in: float = option(8.0, 0, 10_000)
    degree_out: float = option(2.0, 0, 10_000)
    features: int = option(64, 1, 1_000_000)
    noise: float = option(4.0, 0, 1e6)

    def __post_init__(self) -> None:
        check_options(self, "sbm")
        if self.blocks > self.nodes:
            raise DatasetError(
                f"option 'blocks' of sbm must be at most nodes={self.nodes}, got {self.blocks}"
            )
        if self.blocks == 1 and self.degree_out > 0:
            raise DatasetError(
                f"option 'degree_out' of sbm must be 0 with one block, got {self.degree_out:g}"
            )

    @property
    def info(self) -> DatasetInfo:
        """What is known without generating."""
        return DatasetInfo(
            name="sbm",
            source="synthetic: stochastic block model, noisy class features",
            num_nodes=self.nodes,
            num_edges=None,
            num_features=self.features,
            num_classes=self.blocks,
            licence="none needed",
            obtained="generated from the seed",
            options=describe_options(self),
        )

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Generate the graph; the same for a seed on every machine."""
        rng = np.random.Generator(np.random.PCG64(seed))
        label = rng.permutation(np.arange(self.nodes) % self.blocks)
        src, dst = self._draw_edges(rng, label)
        x = rng.standard_normal((self.nodes, self.features), np.float32)
        means = rng.standard_normal((self.blocks, self.features), np.float32)
        x *= np.float32(self.noise)
        x += means[label]
        return graph_from_edges(
            src,
            dst,
            num_nodes=self.nodes,
            symmetrize=True,
            x=x,
            y=label,
            num_classes=self.blocks,
            name=full_name(self, "sbm"),
        )

    def _draw_edges(self, rng: np.random.Generator, label: Array) -> tuple[Array, Array]:
        """Draw undirected edges, each once: first those inside blocks, then those between."""
        members = np.argsort(label, kind="stable")  # nodes grouped by block
        sizes = np.bincount(label, minlength=self.blocks)
        starts = np.cumsum(sizes) - sizes
        num_in = round(self.nodes * self.degree_in / 2)
        num_out = round(self.nodes * self.degree_out / 2)
        src = rng.integers(self.nodes, size=num_in + num_out)
        block = label[src]
        if num_out:
            step = rng.integers(1, self.blocks, size=num_out)
            block[num_in:] = (block[num_in:] + step) % self.blocks
        dst = members[starts[block] + rng.integers(sizes[block])]
        proper = src != dst
        return src[proper], dst[proper]
