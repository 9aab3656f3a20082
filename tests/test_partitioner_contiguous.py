from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import measure_quality
from gnn_dist.partitioners import Contiguous, partition_graph
from gnn_dist.partitioners.contiguous import cut_chain


def with_in_degrees(degrees):
    """A graph whose nodes have these in-degrees, all from node 0."""
    dst = np.repeat(np.arange(len(degrees)), degrees)
    return graph_from_edges(np.zeros(len(dst), int), dst, num_nodes=len(degrees))


def prefix_of(weights):
    return np.concatenate([[0], np.cumsum(np.array(weights, np.int64))])


def loads(weights, bounds):
    return np.diff(prefix_of(weights)[bounds]).tolist()


def best_bottleneck(weights, num_parts):
    """The lightest heaviest run, by trying all cuts."""
    return min(
        max(loads(weights, np.array([0, *cuts, len(weights)])))
        for cuts in combinations(range(1, len(weights)), num_parts - 1)
    )


def test_equal_ranges_of_nodes():
    graph = graph_from_edges([], [], num_nodes=10)
    assert Contiguous()(graph, 4).assignment.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]
    assert Contiguous()(graph, 10).assignment.tolist() == list(range(10))


def test_equal_numbers_of_edges():
    graph = with_in_degrees([6, 1, 1, 1, 1, 2, 3, 3])
    by_edges = Contiguous(balance="edges")(graph, 3)
    assert by_edges.assignment.tolist() == [0, 1, 1, 1, 1, 1, 2, 2]
    assert measure_quality(graph, by_edges).num_edges == [6, 6, 6]
    assert measure_quality(graph, Contiguous()(graph, 3)).num_edges == [7, 3, 8]


def test_no_edges_means_equal_ranges():
    graph = graph_from_edges([], [], num_nodes=6)
    assert Contiguous("edges")(graph, 3).assignment.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_hub_has_a_range_of_its_own_and_a_note():
    graph = with_in_degrees([1, 1, 20, 1, 1, 1])
    partition = partition_graph(graph, 3, "contiguous", balance="edges")
    assert partition.assignment.tolist() == [0, 0, 1, 2, 2, 2]
    assert partition.notes == (
        "node 2 alone has 20 of the 25 in-edges, more than the share of one of 3 parts, so the "
        "parts cannot be balanced by edges",
    )
    assert partition_graph(graph, 3, "contiguous").notes == ()


def test_cuts_lie_near_equal_weights_when_the_bottleneck_leaves_room():
    # The first task sets the bottleneck of 9; filling up to it would give runs of 9, 9, 3 and 1.
    weights = [9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    bounds = cut_chain(prefix_of(weights), 4)
    assert loads(weights, bounds) == [9, 4, 4, 5]


def test_positions_beyond_32_bits():
    weights = [2**40] * 8
    assert loads(weights, cut_chain(prefix_of(weights), 4)) == [2**41] * 4


chains = st.lists(st.integers(0, 9), min_size=1, max_size=9)


@given(chains, st.data())
def test_the_heaviest_run_is_as_light_as_it_can_be(weights, data):
    num_parts = data.draw(st.integers(1, len(weights)))
    bounds = cut_chain(prefix_of(weights), num_parts)
    assert bounds[0] == 0
    assert bounds[-1] == len(weights)
    assert (np.diff(bounds) > 0).all()
    assert max(loads(weights, bounds)) == best_bottleneck(weights, num_parts)


@given(st.lists(st.integers(0, 50), min_size=20, max_size=200), st.integers(1, 20))
def test_no_run_exceeds_the_mean_by_more_than_one_task(weights, num_parts):
    runs = loads(weights, cut_chain(prefix_of(weights), num_parts))
    assert len(runs) == num_parts
    assert max(runs) <= sum(weights) / num_parts + max(weights)
