"""The shared awkward graphs are what their names say, since other tests rely on it."""

import numpy as np
import pytest
from awkward import AWKWARD, NUM_CLASSES, NUM_FEATURES, awkward_case, awkward_cases

from gnn_dist.graph import graph_fields
from gnn_dist.partition import measure_quality

PARTS = [1, 2, 3, 4]


@pytest.mark.parametrize("num_parts", PARTS)
def test_cases_are_complete_and_deterministic(num_parts):
    cases, again = awkward_cases(num_parts), awkward_cases(num_parts)
    assert tuple(case.name for case in cases) == AWKWARD
    for case, other in zip(cases, again, strict=True):
        graph = case.graph
        assert graph.x.dtype == np.float64
        assert graph.num_features == NUM_FEATURES
        assert graph.num_classes == NUM_CLASSES
        assert graph.train_mask.any()
        used = graph.train_mask.astype(int) + graph.val_mask + graph.test_mask
        assert used.max() == 1
        assert graph.num_nodes <= 40
        assert case.partition.num_parts == num_parts
        assert len(case.partition.assignment) == graph.num_nodes
        assert np.array_equal(case.partition.assignment, other.partition.assignment)
        for name in graph_fields():
            assert np.array_equal(getattr(graph, name), getattr(other.graph, name)), name


@pytest.mark.parametrize("name", AWKWARD)
def test_graphs_are_symmetric_where_they_should_be(name):
    directed = {"duplicate edges", "directed", "edge-weighted"}
    assert awkward_case(name, 3).graph.is_symmetric == (name not in directed)


def test_random_partition_has_halo_between_all_parts():
    case = awkward_case("random partition", 4)
    assert min(measure_quality(case.graph, case.partition).num_halo) > 0


def test_empty_part_and_all_on_one():
    assert awkward_case("empty part", 4).partition.sizes.tolist()[1] == 0
    assert (awkward_case("empty part", 4).partition.sizes > 0).sum() == 3
    assert awkward_case("all on one", 4).partition.sizes.tolist() == [0, 0, 0, 20]
    assert awkward_case("single node", 3).partition.sizes.tolist() == [0, 0, 1]


@pytest.mark.parametrize("num_parts", PARTS)
def test_no_halo_has_edges_but_cuts_none(num_parts):
    case = awkward_case("no halo", num_parts)
    quality = measure_quality(case.graph, case.partition)
    assert quality.num_halo == [0] * num_parts
    assert min(quality.num_edges) > 0
    assert quality.edge_cut == 0


def test_isolated_nodes_include_the_first_and_the_last():
    degree = awkward_case("isolated nodes").graph.in_degree
    assert degree[0] == 0
    assert degree[-4:].tolist() == [0] * 4
    assert degree[1:-4].max() > 0


def test_only_the_first_part_trains():
    case = awkward_case("part without train", 3)
    num_train = measure_quality(case.graph, case.partition).num_train
    assert num_train[0] > 0
    assert num_train[1:] == [0, 0]


def test_self_loops_include_a_node_with_nothing_else():
    graph = awkward_case("self-loops").graph
    src, dst = graph.edges()
    assert np.count_nonzero(src == dst) >= 10
    assert src[dst == 0].tolist() == [0]
    assert dst[src == 0].tolist() == [0]


def test_duplicate_edges_include_self_loops():
    src, dst = awkward_case("duplicate edges").graph.edges()
    pairs, copies = np.unique(np.stack([src, dst]), axis=1, return_counts=True)
    assert copies.min() >= 2
    assert copies[(pairs[0] == pairs[1])].min() >= 2


def test_directed_has_no_reverse_edges_and_nodes_without_in_edges():
    graph = awkward_case("directed").graph
    src, dst = graph.edges()
    assert (src < dst).all()
    assert graph.in_degree[0] == 0
    assert 25 not in src


def test_star_is_one_hub():
    case = awkward_case("star", 4)
    assert case.graph.in_degree[7] == 24
    assert np.delete(case.graph.in_degree, 7).tolist() == [1] * 24
    # Node 7 is on part 3, which reads all leaves of the other parts; these read the hub alone.
    assert measure_quality(case.graph, case.partition).num_halo == [1, 1, 1, 19]


def test_edge_weights_are_positive():
    weight = awkward_case("edge-weighted").graph.edge_weight
    assert weight.dtype == np.float64
    assert weight.min() > 0
