"""The partitioners by name, and the front end through which every partition is made."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Protocol, cast

import numpy as np

from gnn_dist.edge_partition import EdgePartition, check_covers
from gnn_dist.errors import PartitionError, nearest
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import Balance
from gnn_dist.partitioners.balanced import BalanceOptions
from gnn_dist.partitioners.best import Best
from gnn_dist.partitioners.contiguous import Contiguous
from gnn_dist.partitioners.dbh import Dbh
from gnn_dist.partitioners.fennel import Fennel
from gnn_dist.partitioners.hdrf import Hdrf
from gnn_dist.partitioners.hierarchy import partition_by_machine
from gnn_dist.partitioners.ldg import Ldg
from gnn_dist.partitioners.libra import Libra
from gnn_dist.partitioners.metis import Metis
from gnn_dist.partitioners.metis_ew import MetisEW
from gnn_dist.partitioners.metis_stream import MetisStream
from gnn_dist.partitioners.mtkahypar import MtKaHyPar
from gnn_dist.partitioners.options import check_flag, check_integer
from gnn_dist.partitioners.protocol import EdgePartitioner, Partitioner
from gnn_dist.partitioners.random_hash import RandomHash
from gnn_dist.partitioners.refine import refine
from gnn_dist.partitioners.spring import Spring
from gnn_dist.partitioners.two_phase import TwoPhase

__all__ = ["STREAMING", "Pipeline", "available", "make_pipeline", "partition_graph"]

AnyPartitioner = Partitioner | EdgePartitioner

EDGE_CUT: tuple[type[Partitioner], ...] = (
    Best,
    Contiguous,
    Fennel,
    Ldg,
    Metis,
    MetisEW,
    MetisStream,
    MtKaHyPar,
    RandomHash,
    Spring,
)
# What needs no more memory than some for each node, so that the graph may be larger than memory.
STREAMING = ("contiguous", "fennel", "ldg", "metis-stream", "random", "spring")
VERTEX_CUT: tuple[type[EdgePartitioner], ...] = (Dbh, Hdrf, Libra, TwoPhase)


def available() -> dict[str, type[AnyPartitioner]]:
    """Return the partitioners by the name that `--method` takes, in alphabetical order.

    Example:
        >>> available()["metis"].__name__
        'Metis'
    """
    algorithms: dict[str, type[AnyPartitioner]] = {a.name: a for a in EDGE_CUT}
    algorithms |= {a.name: a for a in VERTEX_CUT}
    return dict(sorted(algorithms.items()))


class Named(Protocol):
    """What is known of a graph before its edges are."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def num_nodes(self) -> int:
        """N."""
        ...


@dataclass(frozen=True)
class Pipeline:
    """A partitioner with what comes before and after it: checks, machines, refinement.

    Attributes:
        partitioner: Assigns nodes, or edges.
        refine: Refine what it returns, under its constraints; for one without any, under those
            that others have by default.
        machines: Partition for so many machines first, then for the parts of each.
    """

    partitioner: AnyPartitioner
    refine: bool = False
    machines: int = 1

    def __post_init__(self) -> None:
        check_flag("refine", self.refine)
        name = self.partitioner.name
        if getattr(self.partitioner, "cut", "edge") == "vertex" and (
            self.refine or self.machines != 1
        ):
            raise PartitionError(
                f"method {name!r} cuts nodes, and takes neither refine nor machines"
            )
        object.__setattr__(self, "machines", check_integer("machines", self.machines, 1, 2**31))
        if self.machines > 1 and not isinstance(self.partitioner, BalanceOptions):
            raise PartitionError(
                f"method {name!r} takes no constraints, and so no machines: use metis or best"
            )

    def __call__(self, graph: Graph, num_parts: int) -> Partition | EdgePartition:
        """Return the checked partition of a graph.

        Raises:
            PartitionError: `num_parts` does not fit the graph, the method failed, or what it
                returned is no partition of the graph.
        """
        num_parts = self.check(graph, num_parts)
        made = self._made(graph, num_parts)
        _check_result(made, graph, num_parts, self.partitioner)
        notes = made.notes
        empty = np.flatnonzero(made.sizes == 0).tolist()
        if empty:
            notes += (f"parts without nodes: {', '.join(map(str, empty))}",)
        options = asdict(self.partitioner)
        options |= {"refine": True} if self.refine else {}
        options |= {"machines": self.machines} if self.machines > 1 else {}
        return replace(made, method=self.partitioner.name, options=options, notes=notes)

    def check(self, graph: Named, num_parts: int) -> int:
        """Check what does not need the edges, and return P as a plain integer.

        Args:
            graph: A graph, or a stream whose edges are yet to be sorted.
            num_parts: P.

        Raises:
            PartitionError: `num_parts`, shares or a file of weights do not fit the graph.
        """
        num_parts = _checked_num_parts(graph, num_parts)
        if self.machines > num_parts:
            raise PartitionError(
                f"machines must be at most the number of parts, got {self.machines} for {num_parts}"
            )
        if isinstance(self.partitioner, BalanceOptions):
            self.partitioner.check(graph.num_nodes, num_parts)
        return num_parts

    def _made(self, graph: Graph, num_parts: int) -> Partition | EdgePartition:
        if self.machines > 1:
            balance = cast("BalanceOptions", self.partitioner).balance_of(graph, num_parts)
            return partition_by_machine(self._searched, graph, balance, self.machines)
        made = self.partitioner(graph, num_parts)
        if not self.refine or not isinstance(made, Partition):
            return made
        own = self.partitioner
        options = own if isinstance(own, BalanceOptions) else BalanceOptions()
        return self._refined(graph, made, options.balance_of(graph, num_parts))

    def _searched(self, graph: Graph, balance: Balance) -> Partition:
        partitioner = cast("BalanceOptions", self.partitioner)
        made = partitioner.partition(graph, balance)
        return self._refined(graph, made, balance) if self.refine else made

    def _refined(self, graph: Graph, made: Partition, balance: Balance) -> Partition:
        return replace(made, assignment=refine(graph, made.assignment, balance))


def make_pipeline(
    method: str | AnyPartitioner, *, refine: bool = False, machines: int = 1, **options: object
) -> Pipeline:
    """Return what `partition_graph` calls.

    Raises:
        PartitionError: There is no such method, option or value.
    """
    return Pipeline(_resolve(method, options), refine=refine, machines=machines)


def partition_graph(
    graph: Graph,
    num_parts: int,
    method: str | AnyPartitioner = "best",
    *,
    refine: bool = False,
    machines: int = 1,
    **options: object,
) -> Partition | EdgePartition:
    """Partition a graph, whatever graph it is, without changing it.

    Args:
        graph: Directed or not, with or without self-loops, repeated edges and isolated nodes.
        num_parts: P, at least 1 and at most the number of nodes.
        method: A name out of `available()`, in any case, or a partitioner of your own.
        refine: Lower the replication factor of the result by local search, within the constraints.
        machines: Partition for so many machines first, then each machine's nodes for its parts, so
            that less crosses the network.
        **options: The method's options; none with a partitioner of your own, which has its own.

    Returns:
        The partition: an `EdgePartition` by a method whose `cut` is `vertex`. Its `method`,
        `options` (seed and defaults included) and `notes` say how it was made.

    Raises:
        PartitionError: There is no such method, option or value; `num_parts` does not fit the
            graph; the method failed, or what it returned is no partition of the graph.

    Example:
        >>> from gnn_dist.graph import graph_from_edges
        >>> graph = graph_from_edges([0, 1, 2, 3], [1, 2, 3, 0])
        >>> partition = partition_graph(graph, 2, "contiguous", balance="edges")
        >>> partition.assignment.tolist(), partition.method, partition.options
        ([0, 0, 1, 1], 'contiguous', {'balance': 'edges'})
    """
    return make_pipeline(method, refine=refine, machines=machines, **options)(graph, num_parts)


def _checked_num_parts(graph: Named, num_parts: object) -> int:
    if not graph.num_nodes:
        raise PartitionError(
            f"the graph must have at least one node to be partitioned, got {graph.name!r} with none"
        )
    count = check_integer("num_parts (--parts)", num_parts, -(2**63), 2**63 - 1)
    if not 1 <= count <= graph.num_nodes:
        raise PartitionError(
            f"num_parts must be between 1 and num_nodes={graph.num_nodes}, got {count}: "
            f"{'raise' if count < 1 else 'lower'} --parts"
        )
    return count


def _resolve(method: object, options: dict[str, object]) -> AnyPartitioner:
    if isinstance(method, str):
        return _build(method, options)
    if (
        isinstance(method, type)
        or not is_dataclass(method)
        or not isinstance(method, Partitioner | EdgePartitioner)
    ):
        raise PartitionError(
            f"method must be a name or a partitioner such as Metis(seed=1), got {method!r}"
        )
    if options:
        raise PartitionError(
            f"options must be given to the partitioner {method!r} itself, got {sorted(options)} "
            "beside it"
        )
    return method


def _build(method: str, options: dict[str, object]) -> AnyPartitioner:
    methods = available()
    if method.lower() not in methods:
        raise PartitionError(
            f"there is no partitioning method {method!r} (--method): "
            f"{nearest(method, list(methods))}"
        )
    algorithm = methods[method.lower()]
    known = [f.name for f in fields(algorithm)]
    for name in options:
        if name not in known:
            raise PartitionError(
                f"method {algorithm.name!r} has no option {name!r}: its options are "
                f"{', '.join(known)}"
            )
    # A protocol has no constructor that a type checker knows.
    return cast("Callable[..., AnyPartitioner]", algorithm)(**options)


def _check_result(made: object, graph: Graph, num_parts: int, partitioner: AnyPartitioner) -> None:
    name, cut = partitioner.name, getattr(partitioner, "cut", "edge")
    wanted = EdgePartition if cut == "vertex" else Partition
    if not isinstance(made, wanted):
        raise PartitionError(
            f"method {name!r} must return a {wanted.__name__}, got {type(made).__name__}"
        )
    if isinstance(made, EdgePartition):
        check_covers(graph, made)
    num_nodes = len((made.nodes if isinstance(made, EdgePartition) else made).assignment)
    if made.num_parts != num_parts or num_nodes != graph.num_nodes:
        raise PartitionError(
            f"method {name!r} must assign {graph.num_nodes} nodes to {num_parts} parts, got "
            f"{num_nodes} nodes and {made.num_parts} parts"
        )
