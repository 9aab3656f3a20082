"""The default: several searches for few halo rows under all constraints, the best of them kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.graph import Graph
from gnn_dist.partition import Partition, measure_quality
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import Balanced
from gnn_dist.partitioners.metis import Metis
from gnn_dist.partitioners.mtkahypar import MtKaHyPar, has_mtkahypar
from gnn_dist.partitioners.options import check_integer
from gnn_dist.partitioners.refine import Refinement, refine

__all__ = ["Best"]

Array = NDArray[Any]

MTKAHYPAR_UP_TO = 3_000_000  # edges: some 10 s for each million of them on two cores


@dataclass(frozen=True)
class Best(Balanced):
    """Partition in several ways, refine each result, and keep the one with fewest halo rows.

    METIS under all constraints, METIS under the number of nodes alone, and, where it is installed
    and the graph has at most 3 million edges, Mt-KaHyPar. Each is refined, which also brings parts
    to their limits; then the best is combined with the others. `notes` says which was the best.

    Source: see `Metis`, `MtKaHyPar` and `refine`. Time and memory are those of the searches, one
    after the other.

    Attributes:
        seed: Seeds every search.
    """

    name: ClassVar[str] = "best"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**31 - 1))

    def assign(self, graph: Graph, balance: Balance) -> tuple[Array, tuple[str, ...]]:
        """Return the part of each node, and notes."""
        # Most of what refinement wins, it wins at once; the rest is left to the winner.
        light = Refinement(cycles=1, shakes=0, seed=self.seed)
        ranked: list[tuple[tuple[float, float], int, str, Array, tuple[str, ...]]] = []
        for name, start, notes in self._starts(graph, balance):
            refined = refine(graph, start, balance, light)
            ranked.append((_rank(graph, refined, balance), len(ranked), name, refined, notes))
        ranked.sort(key=lambda entry: entry[:2])
        _, _, name, assignment, notes = ranked[0]
        # What all agree on stays together: better than any, or the best of them.
        others = tuple(entry[3] for entry in ranked[1:])
        assignment = refine(graph, assignment, balance, Refinement(seed=self.seed), others=others)
        return assignment, (f"from {name}, refined", *notes)

    def _starts(
        self, graph: Graph, balance: Balance
    ) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
        """Yield (name, assignment, notes) of each search."""
        nodes = Balance(
            ("nodes",),
            np.ones((graph.num_nodes, 1), np.int64),
            balance.targets,
            np.array([balance.imbalance.min()]),
        )
        made = Metis(seed=self.seed).partition(graph, balance)
        yield "metis under all constraints", made.assignment, made.notes
        if balance.names != nodes.names:
            made = Metis(seed=self.seed).partition(graph, nodes)
            yield "metis by nodes", made.assignment, made.notes
        if has_mtkahypar() and graph.num_edges <= MTKAHYPAR_UP_TO:
            made = MtKaHyPar(seed=self.seed).partition(graph, balance)
            yield "mtkahypar", made.assignment, made.notes


def _rank(graph: Graph, assignment: Array, balance: Balance) -> tuple[float, float]:
    """Return what is to be small: excess over the limits, then the replication factor."""
    quality = measure_quality(graph, Partition(assignment, balance.num_parts))
    return balance.excess(assignment), quality.replication_factor
