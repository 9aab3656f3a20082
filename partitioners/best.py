"""The default: several searches for few halo rows under all constraints, the best of them kept."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
# Small graphs are searched several times, those aside whose searches are over before the processes
# have started that they run in.
FEW_EDGES = 5_000
TRIED_EDGES = 200_000  # of all tries of one search together, at most
MOST_TRIES = 4
SEED_STEP = 1009  # between tries: METIS takes seeds 0 and 1 for the same


class _Search(NamedTuple):
    """A way to make a partition.

    Attributes:
        name: For `notes`.
        partitioner: Makes it.
        balance: Under which constraints.
    """

    name: str
    partitioner: Balanced
    balance: Balance


class _Found(NamedTuple):
    """What a search came to after refinement; the least is the best.

    Attributes:
        excess: Over the limits.
        replication_factor: Of the assignment.
        number: Of the search.
        name: Of the search.
        assignment: int32 (N,).
        notes: Of the search.
    """

    excess: float
    replication_factor: float
    number: int
    name: str
    assignment: Array
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Best(Balanced):
    """Partition in several ways, refine each result, and keep the one with fewest halo rows.

    METIS under all constraints, METIS under the number of nodes alone, and, where it is installed
    and the graph has at most 3 million edges, Mt-KaHyPar; each up to four times, where the graph is
    small. Each is refined, which also brings parts to their limits; then the best is combined with
    the others. `notes` says which was the best.

    Source: see `Metis`, `MtKaHyPar` and `refine`. Searches of graphs of at most 3 million edges are
    made side by side, on as many cores as there are; the result is the same for any number of them.
    Memory is that of the searches made at one time.

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
        searches = self._searches(graph, balance)

        def run(numbered: tuple[int, _Search]) -> _Found:
            return self._refined(graph, balance, *numbered)

        cores = len(os.sched_getaffinity(0)) if graph.num_edges <= MTKAHYPAR_UP_TO else 1
        with ThreadPoolExecutor(min(cores, len(searches))) as pool:
            found = sorted(pool.map(run, enumerate(searches)), key=lambda one: one[:3])
        best, *others = found
        # What all agree on stays together: better than any, or the best of them.
        assignment = refine(
            graph,
            best.assignment,
            balance,
            Refinement(seed=self.seed),
            others=tuple(other.assignment for other in others),
        )
        return assignment, (f"from {best.name}, refined", *best.notes)

    def _searches(self, graph: Graph, balance: Balance) -> list[_Search]:
        """Return what is tried, in the order of its worth."""
        nodes = _nodes_alone(balance)
        tries, searches = _tries(graph), []
        for number in range(tries):
            seed = (self.seed + SEED_STEP * number) % 2**31
            searches.append(_Search("metis under all constraints", Metis(seed=seed), balance))
            if balance.names != nodes.names:
                searches.append(_Search("metis by nodes", Metis(seed=seed), nodes))
            if has_mtkahypar() and graph.num_edges <= MTKAHYPAR_UP_TO:
                # Several tries keep the cores busy, each on one; one try takes all of them.
                own = MtKaHyPar(seed=seed, threads=1 if tries > 1 else 0)
                alone = number % 2 == 1
                name = "mtkahypar by nodes" if alone else "mtkahypar"
                searches.append(_Search(name, own, nodes if alone else balance))
        return searches

    def _refined(self, graph: Graph, balance: Balance, number: int, search: _Search) -> _Found:
        made = search.partitioner.partition(graph, search.balance)
        # Most of what refinement wins, it wins at once; the rest is left to the winner, unless the
        # graph is small.
        options = Refinement(cycles=1, shakes=0, seed=self.seed + number)
        if _tries(graph) > 1:
            options = Refinement(seed=self.seed + number)
        refined = refine(graph, made.assignment, balance, options)
        quality = measure_quality(graph, Partition(refined, balance.num_parts))
        excess = balance.excess(refined)
        return _Found(excess, quality.replication_factor, number, search.name, refined, made.notes)


def _nodes_alone(balance: Balance) -> Balance:
    """Return the constraint on the number of nodes, as it is or else as tight as any."""
    own = [tolerance for name, tolerance in zip(balance.names, balance.imbalance, strict=True)
           if name == "nodes"]  # fmt: skip
    return Balance(
        ("nodes",),
        np.ones((len(balance.weights), 1), np.int64),
        balance.targets,
        np.array(own or [balance.imbalance.min()]),
    )


def _tries(graph: Graph) -> int:
    """Return how often each search is made."""
    if graph.num_edges < FEW_EDGES:
        return 1
    return min(MOST_TRIES, max(1, TRIED_EDGES // graph.num_edges))
