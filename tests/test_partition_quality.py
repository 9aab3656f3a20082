import json

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist import arrays
from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import Partition, measure_quality


def by_definition(graph, partition):
    """(in-edges per part, halo rows per part, cut edges), from sets."""
    edges = [0] * partition.num_parts
    halo = [set() for _ in edges]
    cut = 0
    for src, dst in zip(*graph.edges(), strict=True):
        reader, owner = partition.assignment[[dst, src]]
        edges[reader] += 1
        if reader != owner:
            halo[reader].add(int(src))
            cut += 1
    return edges, [len(rows) for rows in halo], cut


def test_a_cycle_cut_in_two():
    # 0 -> 1 -> 2 -> 3 -> 0; parts {0, 1} and {2, 3}: 1 -> 2 and 3 -> 0 are cut.
    graph = graph_from_edges([0, 1, 2, 3], [1, 2, 3, 0])
    quality = measure_quality(graph, Partition(np.array([0, 0, 1, 1]), 2))
    assert quality.num_nodes == [2, 2]
    assert quality.num_edges == [2, 2]
    assert quality.num_halo == [1, 1]
    assert quality.num_train is None
    assert quality.edge_cut == 2
    assert quality.edge_cut_fraction == 0.5
    assert quality.replication_factor == 1.5
    assert quality.balance == {"nodes": 1.0, "edges": 1.0}


def test_halo_counts_a_source_once_per_part():
    # Node 0 is read by 1 and 2 (part 1), twice by 3 (part 2); 3 reads 1 too. Self-loop on 2.
    src, dst = [0, 0, 0, 0, 1, 2], [1, 2, 3, 3, 3, 2]
    graph = graph_from_edges(src, dst, train_mask=[True, True, False, True])
    quality = measure_quality(graph, Partition(np.array([0, 1, 1, 2]), 3))
    assert quality.num_nodes == [1, 2, 1]
    assert quality.num_edges == [0, 3, 3]
    assert quality.num_halo == [0, 1, 2]
    assert quality.num_train == [1, 1, 1]
    assert quality.edge_cut == 5
    assert quality.edge_cut_fraction == 5 / 6
    assert quality.replication_factor == 7 / 4
    assert quality.balance == {"nodes": 1.5, "edges": 1.5, "train": 1.0}


def test_training_nodes_are_those_of_the_first_split():
    mask = np.array([[1, 0], [1, 0], [0, 1]])
    graph = graph_from_edges([], [], num_nodes=3, train_mask=mask)
    assert measure_quality(graph, Partition(np.array([0, 1, 1]), 2)).num_train == [1, 1]


def test_empty_parts_and_empty_graphs():
    graph = graph_from_edges([], [])
    quality = measure_quality(graph, Partition(np.zeros(0, int), 2))
    assert quality.num_halo == [0, 0]
    assert (quality.edge_cut_fraction, quality.replication_factor) == (0.0, 1.0)
    assert quality.balance == {"nodes": 1.0, "edges": 1.0}
    lonely = measure_quality(graph_from_edges([0], [0]), Partition(np.array([2]), 4))
    assert lonely.balance == {"nodes": 4.0, "edges": 4.0}


def test_to_dict_is_json():
    graph = graph_from_edges([0, 1], [1, 0], train_mask=[True, False])
    plain = measure_quality(graph, Partition(np.array([0, 1]), 2)).to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["balance"]["train"] == 2.0
    assert plain["num_halo"] == [1, 1]


def test_a_partition_of_another_graph_is_refused():
    graph = graph_from_edges([0], [1])
    with pytest.raises(PartitionError, match="cover the graph's 2 nodes, got 3"):
        measure_quality(graph, Partition(np.array([0, 0, 0]), 1))


@pytest.mark.parametrize("limit", [1, 7, 1000])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_graphs_by_definition(name, limit, monkeypatch):
    monkeypatch.setattr(arrays, "CHECK_CHUNK", limit)
    for num_parts in (1, 2, 3, 4):
        _, graph, partition = awkward_case(name, num_parts)
        quality = measure_quality(graph, partition)
        found = quality.num_edges, quality.num_halo, quality.edge_cut
        assert found == by_definition(graph, partition)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(0, 80), st.integers(1, 6))
def test_random_multigraphs_by_definition(seed, num_nodes, num_edges, num_parts):
    rng = np.random.default_rng(seed)
    graph = graph_from_edges(*rng.integers(0, num_nodes, (2, num_edges)), num_nodes=num_nodes)
    partition = Partition(rng.integers(0, num_parts, num_nodes), num_parts)
    quality = measure_quality(graph, partition)
    edges, halo, cut = by_definition(graph, partition)
    assert (quality.num_edges, quality.num_halo, quality.edge_cut) == (edges, halo, cut)
    assert quality.replication_factor == (num_nodes + sum(halo)) / num_nodes
