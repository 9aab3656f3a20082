"""What a partitioner is: one that assigns nodes, or one that assigns edges."""

from dataclasses import Field
from typing import Any, ClassVar, Protocol, runtime_checkable

from gnn_dist.edge_partition import EdgePartition
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition

__all__ = ["EdgePartitioner", "Partitioner"]


@runtime_checkable
class Partitioner(Protocol):
    """A frozen dataclass of options that assigns the nodes of a graph to parts when called.

    A partitioner is pure: it changes neither the graph nor itself, and two calls with the same
    graph, number of parts and options (a seed among them, where there is chance) return the same
    assignment. It may rely on `1 <= num_parts <= graph.num_nodes`, which `partition_graph` checks,
    and it leaves no part empty. Bad option values are refused when it is made.

    Attributes:
        name: The word that users write after `--method`.

    Example:
        A partitioner of one's own goes through the same front end.

        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> from gnn_dist.graph import graph_from_edges
        >>> from gnn_dist.partitioners import partition_graph
        >>> @dataclass(frozen=True)
        ... class Stripes:
        ...     name: ClassVar[str] = "stripes"
        ...     width: int = 1
        ...
        ...     def __call__(self, graph: Graph, num_parts: int) -> Partition:
        ...         stripe = np.arange(graph.num_nodes) // self.width
        ...         return Partition(stripe % num_parts, num_parts)
        >>> graph = graph_from_edges([0, 1, 2], [1, 2, 3])
        >>> partition_graph(graph, 2, Stripes(width=2)).assignment.tolist()
        [0, 0, 1, 1]
    """

    name: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, graph: Graph, num_parts: int) -> Partition:
        """Return an assignment of the graph's nodes to `num_parts` parts."""
        ...


@runtime_checkable
class EdgePartitioner(Protocol):
    """A frozen dataclass of options that assigns the edges of a graph to parts when called.

    What is said of `Partitioner` holds here too, but for one thing: a part may come out empty, as
    a graph may have fewer edges than parts.

    Attributes:
        name: The word that users write after `--method`.
        cut: `vertex`: nodes may have clones in several parts.
    """

    name: ClassVar[str]
    cut: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, graph: Graph, num_parts: int) -> EdgePartition:
        """Return an assignment of the graph's edges, and of its nodes' roots, to parts."""
        ...
