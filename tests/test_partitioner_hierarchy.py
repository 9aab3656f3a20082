"""Partitioning by machines first."""

import numpy as np
import pytest

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import Partition
from gnn_dist.partitioners import RandomHash, partition_graph
from gnn_dist.partitioners.balance import make_balance
from gnn_dist.partitioners.hierarchy import induced_structure, partition_by_machine


def ring_of_cliques(number, size):
    """Cliques in a ring, neighbours joined by one edge."""
    src, dst = [], []
    for c in range(number):
        a, b = np.divmod(np.arange(size * size), size)
        src += [*(c * size + a[a != b]).tolist(), c * size]
        dst += [*(c * size + b[a != b]).tolist(), (c + 1) % number * size + 1]
    return graph_from_edges(src, dst, symmetrize=True)


def crossing(graph, group):
    src, dst = graph.edges()
    return int((group[src] != group[dst]).sum())


@pytest.mark.parametrize("method", ["metis", "fennel", "spring", "metis-stream"])
def test_machines_have_consecutive_parts_and_few_edges_between(method):
    graph = ring_of_cliques(8, 6)
    made = partition_graph(graph, 8, method, machines=2, balance="nodes")
    assert made.options["machines"] == 2
    assert made.sizes.min() > 0
    machine = made.assignment // 4
    assert np.bincount(machine).tolist() == pytest.approx([24, 24], abs=2)
    if method == "metis":
        assert made.sizes.tolist() == [6] * 8
        assert crossing(graph, machine) == 4  # the ring is cut twice, in both directions


def test_unequal_numbers_of_parts_get_their_shares():
    graph = ring_of_cliques(9, 4)
    made = partition_graph(graph, 3, "metis", machines=2, balance="nodes")
    # The first machine has one part, the second two.
    assert made.sizes.tolist() == pytest.approx([12, 12, 12], abs=2)


def test_work_is_counted_in_the_whole_graph():
    graph = ring_of_cliques(8, 6)
    balance = make_balance(graph, 4, "edges")
    seen = []

    def search(part, inside):
        seen.append(inside.totals.tolist())
        return partition_graph(part, inside.num_parts, "contiguous")

    partition_by_machine(search, graph, balance, 2)
    # A machine's in-edges are those of its nodes, also those from the other machine.
    assert seen[0] == balance.totals.tolist()
    assert seen[1][0] + seen[2][0] == balance.totals[0]


def test_refinement_stays_within_machines():
    graph = ring_of_cliques(8, 6)
    made = partition_graph(graph, 4, "metis", machines=2, refine=True, balance="nodes")
    assert crossing(graph, made.assignment // 2) == 4
    assert crossing(graph, made.assignment) == 8
    streamed = [
        partition_graph(graph, 4, "fennel", machines=2, refine=refine, balance="nodes").assignment
        for refine in (True, False)
    ]
    assert crossing(graph, streamed[0] // 2) <= crossing(graph, streamed[1] // 2)


def test_an_induced_structure_keeps_the_edges_among_its_nodes():
    graph = graph_from_edges([0, 1, 2, 3, 4, 3], [1, 2, 3, 4, 0, 1])
    part = induced_structure(graph, np.array([1, 3, 4]))
    assert [ends.tolist() for ends in part.edges()] == [[1, 1], [0, 2]]
    assert induced_structure(graph, np.array([], int)).num_nodes == 0


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (RandomHash(), {"machines": 2}, "'random' takes no constraints, and so no machines"),
        ("metis", {"machines": 5}, "machines must be at most the number of parts, got 5 for 4"),
        ("metis", {"machines": 0}, r"machines must be an integer in 1\.\."),
        ("libra", {"machines": 2}, "'libra' cuts nodes, and takes neither refine nor machines"),
        ("libra", {"refine": True}, "'libra' cuts nodes, and takes neither refine nor machines"),
    ],
)
def test_what_does_not_go_together_is_refused(method, options, message):
    with pytest.raises(PartitionError, match=message):
        partition_graph(ring_of_cliques(3, 3), 4, method, **options)


def test_each_level_has_half_of_the_imbalance():
    ring = np.arange(16)
    graph = graph_from_edges(ring, np.roll(ring, 1), symmetrize=True)
    balance = make_balance(graph, 4, "nodes,edges:0.44", 0.21)
    given = []

    def search(part, inside):
        given.append(inside.imbalance)
        return Partition(np.arange(part.num_nodes) * inside.num_parts // part.num_nodes, 2)

    partition_by_machine(search, graph, balance, 2)
    assert len(given) == 3
    assert np.allclose(given, [0.1, 0.2])  # 1.1 * 1.1 = 1.21
