"""Mt-KaHyPar: multilevel partitioning of the hypergraph whose cost is the halo itself."""

import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import row_blocks
from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import Balanced
from gnn_dist.partitioners.child_process import run_child, write_integers
from gnn_dist.partitioners.options import check_choice, check_integer
from gnn_dist.partitioners.repair import deal_out

__all__ = ["MtKaHyPar", "has_mtkahypar"]

Array = NDArray[Any]

MOST_WEIGHT = 2**30  # of all nodes together: it counts in 32 bits
PRESETS = ("deterministic", "deterministic_quality", "default", "quality", "highest_quality")


@dataclass(frozen=True)
class MtKaHyPar(Balanced):
    """Partition with Mt-KaHyPar, so that parts hold few copies of remote nodes.

    Every node is a net that holds the node and those that read it. A net in several parts costs
    one copy (a halo row) for each but one of them, which is what Mt-KaHyPar minimises: where METIS
    counts cut edges, this counts the rows that travel. It knows one weight a node, so several
    constraints are folded into one, and the refinement that follows meets each of them.

    Source: L. Gottesbüren, T. Heuer, N. Maas, P. Sanders, S. Schlag, "Scalable High-Quality
    Hypergraph Partitioning", ACM Transactions on Algorithms 20 (2024), arXiv 2303.17679. Time
    about O(E log P); memory beside the graph some 150 bytes an edge in a child process.

    Attributes:
        seed: Seeds Mt-KaHyPar's choices.
        preset: `deterministic` or `deterministic_quality`, which give the same parts for every
            number of threads, or `default`, `quality` or `highest_quality`, which do not.
        threads: Threads, all cores by default.
    """

    name: ClassVar[str] = "mtkahypar"
    seed: int = 0
    preset: str = "deterministic"
    threads: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("preset", self.preset, PRESETS)
        object.__setattr__(self, "seed", check_integer("seed", self.seed, 0, 2**31 - 1))
        object.__setattr__(self, "threads", check_integer("threads", self.threads, 0, 4096))

    def assign(self, graph: Graph, balance: Balance) -> tuple[Array, tuple[str, ...]]:
        """Return the part of each node, and notes.

        Raises:
            PartitionError: Mt-KaHyPar is not installed, or failed.
        """
        if not has_mtkahypar():
            raise PartitionError(
                "method 'mtkahypar' needs Mt-KaHyPar: pip install gnn-dist[mtkahypar], or take "
                "--method metis"
            )
        weight = _within_int32(balance.folded())
        # The folded weight of each part may exceed its target as the loosest constraint does.
        imbalance = float(balance.imbalance.min())
        target = balance.targets * weight.sum()
        limits = np.ceil(np.maximum(target * (1 + imbalance), target + weight.max()))
        problem = {
            "tool": "mtkahypar",
            "seed": self.seed,
            "preset": self.preset.upper(),
            "threads": self.threads or len(os.sched_getaffinity(0)),
            "imbalance": imbalance,
            "limits": limits.astype(int).tolist(),
        }
        where = f"Mt-KaHyPar on {graph.num_nodes} nodes in {balance.num_parts} parts"
        try:
            with tempfile.TemporaryDirectory(prefix="gnn-dist-mtkahypar-") as name:
                folder = Path(name)
                if not _write_nets(folder, graph):
                    assignment = np.full(graph.num_nodes, -1, np.int32)
                    deal_out(assignment, balance)
                    return assignment, ()
                result = run_child(folder, problem, weight, balance.num_parts, where=where)
        except OSError as error:
            raise PartitionError(
                f"{where} needs a folder for temporary files and a Python that it can start, got "
                f"{error}: set TMPDIR to a folder with room for {16 * graph.num_edges} bytes"
            ) from error
        return result.parts, ()


def has_mtkahypar() -> bool:
    """Return whether Mt-KaHyPar is installed."""
    return importlib.util.find_spec("mtkahypar") is not None


def _within_int32(weight: Array) -> Array:
    """Return weights whose sum Mt-KaHyPar can count, scaled down where they are too large."""
    total = int(weight.sum())
    if total <= MOST_WEIGHT:
        return weight
    scaled: Array = np.maximum(1, weight * (MOST_WEIGHT / total)).astype(np.int64)
    return scaled


def _write_nets(folder: Path, graph: Graph) -> bool:
    """Write each node's net, itself and its readers; return whether any has another reader."""
    import scipy.sparse

    no_data = np.zeros(graph.num_edges, np.int8)
    shape = (graph.num_nodes, graph.num_nodes)
    out = scipy.sparse.csr_array((no_data, graph.indices, graph.indptr), shape).tocsc()
    sizes: list[Array] = []
    with (folder / "pins.int64").open("wb") as pins:
        for rows in row_blocks(np.diff(out.indptr)):
            nodes = np.arange(rows.start, rows.stop)
            readers = out.indices[out.indptr[rows.start] : out.indptr[rows.stop]]
            counts = np.diff(out.indptr[rows.start : rows.stop + 1])
            net = np.concatenate([nodes, np.repeat(nodes, counts)])
            pairs = np.unique(net * graph.num_nodes + np.concatenate([nodes, readers]))
            net, pin = np.divmod(pairs, graph.num_nodes)
            size = np.bincount(net - rows.start, minlength=len(nodes))
            write_integers(pins, pin[(size > 1)[net - rows.start]])
            sizes.append(size[size > 1])
    with (folder / "net_ptr.int64").open("wb") as net_ptr:
        write_integers(net_ptr, np.zeros(1))
        write_integers(net_ptr, np.cumsum(np.concatenate(sizes)))
    return any(map(len, sizes))
