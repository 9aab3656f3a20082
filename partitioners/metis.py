"""METIS: multilevel partitioning for a small edge cut, the best quality of the methods here."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.adjacency import (
    UndirectedRows,
    has_neighbours,
    internal_degree,
    undirected_rows,
)
from gnn_dist.partitioners.metis_process import run_metis, write_integers
from gnn_dist.partitioners.options import check_choice, check_integer, check_number
from gnn_dist.partitioners.repair import deal_to_lightest, fill_empty_parts
from gnn_dist.partitioners.weights import BALANCES, hub_notes, node_weights

__all__ = ["EdgeWeights", "Metis"]

Array = NDArray[Any]
EdgeWeights = Callable[[UndirectedRows], Array]

OBJECTIVES = ("cut", "volume")  # in the order of METIS's own numbers for them
MAX_EDGE_WEIGHT = 1000  # sums stay far from overflow, and one heavy pair cannot rule the coarsening
RECURSIVE_UP_TO = 8  # parts


@dataclass(frozen=True)
class Metis:
    """Partition with METIS, called so that it can neither crash the process nor mislead.

    METIS sees a private, simple, undirected copy of the graph: self-loops dropped, directions
    ignored, repeated edges joined in one of greater weight, nodes without neighbours left out and
    dealt out to the lightest parts afterwards. It runs in a child process, and its result is
    checked. Parts that it leaves empty are filled, which `notes` then says.

    Source: G. Karypis, V. Kumar, "A fast and high quality multilevel scheme for partitioning
    irregular graphs", SIAM Journal on Scientific Computing 20 (1998). O(E log P) time; memory
    beside the graph: 5 bytes an edge in this process, then some 130 bytes an edge in the child
    (measured on 19 million edges), and 8 or 16 bytes an edge in the folder for temporary files.

    Attributes:
        balance: What parts have in equal measure: `nodes`, or `edges` together with nodes (the
            weights are explained at `node_weights`). Edges by default, since ranks wait for the
            one with most work; on graphs of even degrees it changes little.
        seed: Seeds METIS's choices.
        objective: `cut` minimises cut edges. `volume` minimises the rows that parts send each
            other: a few per cent fewer of them for 8 parts and more, at several times the time.
        recursive: Recursive bisection (True) or the direct k-way algorithm (False). By default
            bisection where it was better when measured: up to 8 parts balanced by nodes.
        imbalance: How far above the mean a part's weight may lie: 0.03 is 3 per cent.
        tries: Partitions to make, of which METIS keeps the best.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3])  # two triangles
        >>> from gnn_dist.partition import measure_quality
        >>> measure_quality(graph, Metis()(graph, 2)).edge_cut
        0
    """

    name: ClassVar[str] = "metis"
    balance: str = "edges"
    seed: int = 0
    objective: str = "cut"
    recursive: bool | None = None
    imbalance: float = 0.03
    tries: int = 1

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, BALANCES)
        check_choice("objective", self.objective, OBJECTIVES)
        if self.recursive not in (True, False, None):
            raise PartitionError(f"recursive must be True, False or None, got {self.recursive!r}")
        if self.recursive and self.objective == "volume":
            raise PartitionError(
                "objective 'volume' must go with recursive=False, got recursive=True: METIS knows "
                "it in its k-way algorithm only"
            )
        # METIS reads seed -1 as "none", and counts the imbalance in thousandths.
        for name, low, high in (("seed", 0, 2**31 - 1), ("tries", 1, 1000)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), low, high))
        imbalance = check_number("imbalance", self.imbalance, 0.001, 10.0)
        object.__setattr__(self, "imbalance", imbalance)

    def __call__(self, graph: Graph, num_parts: int) -> Partition:
        """Return a partition with a small edge cut."""
        if num_parts == 1:
            return Partition(np.zeros(graph.num_nodes, np.int32), 1)
        if num_parts == graph.num_nodes:
            return Partition(np.arange(num_parts, dtype=np.int32), num_parts)
        weights = node_weights(graph, self.balance)
        core, core_parts = self._partition_core(graph, num_parts, weights)
        assignment = _deal_isolated(core, core_parts, num_parts, weights)
        notes = hub_notes(graph, num_parts, self.balance)
        num_empty = num_parts - len(np.unique(assignment))
        if num_empty:
            cost = internal_degree(graph, assignment)
            assignment, moved = fill_empty_parts(assignment, num_parts, cost)
            notes += (
                f"METIS left {num_empty} of {num_parts} parts empty: {moved} nodes of the largest "
                "parts were moved there",
            )
        return Partition(assignment, num_parts, notes=notes)

    def _partition_core(self, graph: Graph, num_parts: int, weights: Array) -> tuple[Array, Array]:
        """Return the ids of the nodes that have neighbours, and their parts."""
        try:
            with tempfile.TemporaryDirectory(prefix="gnn-dist-metis-") as name:
                folder = Path(name)
                core = _write_core(folder, graph, weights, self._edge_weights(graph))
                if len(core) <= num_parts:
                    return core, np.arange(len(core), dtype=np.int32)
                # Here the private copy exists on disk alone.
                parts = run_metis(
                    folder,
                    len(core),
                    num_parts,
                    recursive=self._is_recursive(num_parts),
                    options=self._metis_options(),
                )
                return core, parts
        except OSError as error:
            raise PartitionError(
                f"METIS needs a folder for temporary files and a Python that it can start, got "
                f"{error}: set TMPDIR to a folder with room for {32 * graph.num_edges} bytes"
            ) from error

    def _edge_weights(self, graph: Graph) -> EdgeWeights:
        """Return what computes the weights of some rows' entries: integers of at least one."""
        del graph
        return lambda rows: np.minimum(rows.multiplicity, MAX_EDGE_WEIGHT)

    def _is_recursive(self, num_parts: int) -> bool:
        if self.recursive is not None:
            return self.recursive
        plain = self.balance == "nodes" and self.objective == "cut"
        return plain and num_parts <= RECURSIVE_UP_TO

    def _metis_options(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "ncuts": self.tries,
            "objtype": OBJECTIVES.index(self.objective),
            "ufactor": round(1000 * self.imbalance),
        }


def _write_core(folder: Path, graph: Graph, weights: Array, edge_weights: EdgeWeights) -> Array:
    """Write the graph as METIS takes it; return the int64 ids of the nodes it holds."""
    connected = has_neighbours(graph)
    core = np.flatnonzero(connected)
    new_id = np.cumsum(connected) - 1
    extremes: set[int] = set()
    degrees = []
    with (
        (folder / "indices.int64").open("wb") as indices,
        (folder / "edge_weight.int64").open("wb") as edge_weight,
    ):
        for rows in undirected_rows(graph):
            degrees.append(rows.degree)
            write_integers(indices, new_id[rows.neighbours])
            values = edge_weights(rows)
            write_integers(edge_weight, values)
            if len(values):
                extremes |= {int(values.min()), int(values.max())}
    if len(extremes) <= 1:  # equal weights say nothing
        (folder / "edge_weight.int64").unlink()
    with (folder / "indptr.int64").open("wb") as indptr:
        write_integers(indptr, np.zeros(1))
        write_integers(indptr, np.cumsum(np.concatenate(degrees)[core]))
    with (folder / "node_weight.int64").open("wb") as node_weight:
        write_integers(node_weight, weights[core])
    return core


def _deal_isolated(core: Array, core_parts: Array, num_parts: int, weights: Array) -> Array:
    """Return the whole assignment: isolated nodes go where they level the weights."""
    assignment = np.full(len(weights), -1, np.int32)
    assignment[core] = core_parts
    isolated = assignment < 0
    if isolated.any():
        part_weight = np.zeros(num_parts, np.int64)
        np.add.at(part_weight, core_parts, weights[core])
        assignment[isolated] = deal_to_lightest(part_weight, weights[isolated])
    return assignment
