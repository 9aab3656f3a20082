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
from gnn_dist.partitioners.adjacency import UndirectedRows, has_neighbours, undirected_rows
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import Balanced
from gnn_dist.partitioners.child_process import run_metis, write_integers
from gnn_dist.partitioners.options import check_choice, check_integer
from gnn_dist.partitioners.repair import deal_out

__all__ = ["EdgeWeights", "Metis"]

Array = NDArray[Any]
EdgeWeights = Callable[[UndirectedRows], Array]

OBJECTIVES = ("cut", "volume")  # in the order of METIS's own numbers for them
MAX_EDGE_WEIGHT = 1000  # sums stay far from overflow, and one heavy pair cannot rule the coarsening
RECURSIVE_UP_TO = 8  # parts
FOLDED = (
    "this build of pymetis does not reach METIS's several constraints: they were folded into one "
    "weight, so that each alone is balanced less well"
)


@dataclass(frozen=True)
class Metis(Balanced):
    """Partition with METIS, called so that it can neither crash the process nor mislead.

    METIS sees a private, simple, undirected copy of the graph: self-loops dropped, directions
    ignored, repeated edges joined in one of greater weight, nodes without neighbours left out and
    dealt out to the lightest parts afterwards. It is given every constraint of `balance`, and the
    share of each part. It runs in a child process, and its result is checked. Parts that it leaves
    empty are filled, which `notes` then says.

    Source: G. Karypis, V. Kumar, "A fast and high quality multilevel scheme for partitioning
    irregular graphs", SIAM Journal on Scientific Computing 20 (1998), and "Multilevel algorithms
    for multi-constraint graph partitioning", Supercomputing 1998. O(E log P) time; memory
    beside the graph: 5 bytes an edge in this process, then some 130 bytes an edge in the child
    (measured on 19 million edges), and 8 or 16 bytes an edge in the folder for temporary files.

    Attributes:
        seed: Seeds METIS's choices.
        objective: `cut` minimises cut edges. `volume` minimises the rows that parts send each
            other: a few per cent fewer of them for 8 parts and more, at several times the time.
        recursive: Recursive bisection (True) or the direct k-way algorithm (False). By default
            bisection where it was better when measured: up to 8 parts balanced by nodes.
        tries: Partitions to make, of which METIS keeps the best.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3])  # two triangles
        >>> from gnn_dist.partition import measure_quality
        >>> measure_quality(graph, Metis()(graph, 2)).edge_cut
        0
    """

    name: ClassVar[str] = "metis"
    seed: int = 0
    objective: str = "cut"
    recursive: bool | None = None
    tries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("objective", self.objective, OBJECTIVES)
        if self.recursive not in (True, False, None):
            raise PartitionError(f"recursive must be True, False or None, got {self.recursive!r}")
        if self.recursive and self.objective == "volume":
            raise PartitionError(
                "objective 'volume' must go with recursive=False, got recursive=True: METIS knows "
                "it in its k-way algorithm only"
            )
        # METIS reads seed -1 as "none".
        for name, low, high in (("seed", 0, 2**31 - 1), ("tries", 1, 1000)):
            object.__setattr__(self, name, check_integer(name, getattr(self, name), low, high))

    def assign(self, graph: Graph, balance: Balance) -> tuple[Array, tuple[str, ...]]:
        """Return the part of each node, and notes."""
        core, core_parts, folded = self._partition_core(graph, balance)
        return _deal_isolated(core, core_parts, balance), (FOLDED,) if folded else ()

    def _partition_core(self, graph: Graph, balance: Balance) -> tuple[Array, Array, bool]:
        """Return the ids of the nodes that have neighbours, their parts, and `folded`."""
        try:
            with tempfile.TemporaryDirectory(prefix="gnn-dist-metis-") as name:
                folder = Path(name)
                core = _write_core(folder, graph, self._edge_weights(graph))
                if len(core) <= balance.num_parts:
                    return core, np.arange(len(core), dtype=np.int32), False
                # Here the private copy exists on disk alone.
                result = run_metis(
                    folder,
                    balance.take(core),
                    recursive=self._is_recursive(balance),
                    options=self._metis_options(),
                )
                return core, *result
        except OSError as error:
            raise PartitionError(
                f"METIS needs a folder for temporary files and a Python that it can start, got "
                f"{error}: set TMPDIR to a folder with room for {32 * graph.num_edges} bytes"
            ) from error

    def _edge_weights(self, graph: Graph) -> EdgeWeights:
        """Return what computes the weights of some rows' entries: integers of at least one."""
        del graph
        return lambda rows: np.minimum(rows.multiplicity, MAX_EDGE_WEIGHT)

    def _is_recursive(self, balance: Balance) -> bool:
        if self.recursive is not None:
            return self.recursive
        plain = balance.names == ("nodes",) and self.objective == "cut"
        return plain and balance.num_parts <= RECURSIVE_UP_TO

    def _metis_options(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "ncuts": self.tries,
            "objtype": OBJECTIVES.index(self.objective),
        }


def _write_core(folder: Path, graph: Graph, edge_weights: EdgeWeights) -> Array:
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
    return core


def _deal_isolated(core: Array, core_parts: Array, balance: Balance) -> Array:
    """Return the whole assignment: isolated nodes go where they level the loads."""
    assignment = np.full(len(balance.weights), -1, np.int32)
    assignment[core] = core_parts
    deal_out(assignment, balance)
    return assignment
