"""Partitioning by machines first, then inside each of them, so that little crosses the network."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.arrays import csr_take
from gnn_dist.graph import Graph
from gnn_dist.partition import Partition
from gnn_dist.partitioners.balance import Balance

__all__ = ["induced_structure", "partition_by_machine"]

Array = NDArray[Any]


def partition_by_machine(
    search: Callable[[Graph, Balance], Partition], graph: Graph, balance: Balance, num_machines: int
) -> Partition:
    """Partition a graph for machines, and each machine's nodes for its parts.

    Machine m has the parts `[m * P // M, (m + 1) * P // M)`, as ranks that a launcher places one
    machine after the other. What is balanced on a machine is balanced by the weights of the whole
    graph: an in-edge from another machine counts as work like any other.

    Args:
        search: Partitions a graph under constraints; called M + 1 times.
        graph: The graph.
        balance: The constraints on the P parts.
        num_machines: M, 1 to P.

    Returns:
        The partition in P parts. Each of the two levels has half of the imbalance (in logarithms).

    Raises:
        PartitionError: The search failed.
    """
    num_parts = balance.num_parts
    bounds = np.arange(num_machines + 1) * num_parts // num_machines
    imbalance = np.sqrt(1 + balance.imbalance) - 1
    shares = np.add.reduceat(balance.targets, bounds[:-1])
    machines = replace(balance, targets=shares, imbalance=imbalance)
    outer = search(graph, machines)
    assignment = np.empty(graph.num_nodes, np.int32)
    notes = list(outer.notes)
    for machine in range(num_machines):
        nodes = np.flatnonzero(outer.assignment == machine)
        first, last = bounds[machine], bounds[machine + 1]
        # A machine can have fewer nodes than parts; then some stay empty, as the notes will say.
        parts = min(int(last - first), len(nodes))
        if not parts:
            continue
        targets = balance.targets[first : first + parts]
        inside = replace(balance.take(nodes), targets=targets / targets.sum(), imbalance=imbalance)
        made = search(induced_structure(graph, nodes), inside)
        assignment[nodes] = first + made.assignment
        notes += [note for note in made.notes if note not in notes]
    return Partition(assignment, num_parts, notes=tuple(notes))


def induced_structure(graph: Graph, nodes: Array) -> Graph:
    """Return the edges among some nodes, as a graph of its own without data.

    Args:
        graph: The graph.
        nodes: Ascending int64 (K,); node i of the result is `nodes[i]`.
    """
    new_id = np.full(graph.num_nodes, -1, graph.indices.dtype)
    new_id[nodes] = np.arange(len(nodes))
    indptr, position = csr_take(graph.indptr, nodes)
    source = new_id[graph.indices[position]]
    kept = source >= 0
    counts = np.concatenate([[0], np.cumsum(kept)])
    return Graph(counts[indptr], source[kept], name=graph.name)
