"""Random parts of equal size: the baseline, and the worst case for the halo."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.options import check_integer

__all__ = ["RandomHash"]

Array = NDArray[Any]


@dataclass(frozen=True)
class RandomHash:
    """Order the nodes by a hash of (seed, id) and deal them out in equal runs.

    Part sizes differ by one node at most. The result depends on the number of nodes alone, so it
    is the same on every machine and with every NumPy version. Time O(N log N), memory O(N).

    Attributes:
        seed: Chooses the hash.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([], [], num_nodes=7)
        >>> RandomHash(seed=1)(graph, 3).sizes.tolist()
        [3, 2, 2]
    """

    name: ClassVar[str] = "random"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**63 - 1))

    def __call__(self, graph: Graph, num_parts: int) -> Partition:
        """Return a random assignment."""
        # The hash permutes the 64-bit integers, so there are no ties to break.
        order = np.argsort(_hash(np.arange(graph.num_nodes, dtype=np.uint64), self.seed))
        assignment = np.empty(graph.num_nodes, np.int32)
        assignment[order] = np.arange(graph.num_nodes) * num_parts // max(1, graph.num_nodes)
        return Partition(assignment, num_parts)


def _hash(values: Array, seed: int) -> Array:
    """Return the output of the SplitMix64 generator of a seed at given uint64 positions.

    Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014, figure 17 with the constants of D. Stafford's variant 13. The seed is mixed first,
    since the streams of neighbouring seeds would else be shifts of each other.
    """
    start = _mix(np.array([seed], np.uint64))
    return _mix(start + (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def _mix(z: Array) -> Array:
    mixed: Array = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
