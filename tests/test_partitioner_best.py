"""The default: the best of several searches, and Mt-KaHyPar as one of them."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import measure_quality
from gnn_dist.partitioners import MtKaHyPar, best, mtkahypar, partition_graph
from gnn_dist.partitioners.balance import make_balance
from gnn_dist.partitioners.mtkahypar import has_mtkahypar

needs_mtkahypar = pytest.mark.skipif(not has_mtkahypar(), reason="needs mtkahypar")


def blocks(seed=0, number=8, size=60):
    """Communities with a train mask that lies in the first three of them."""
    rng = np.random.default_rng(seed)
    num_nodes = number * size
    src = rng.integers(num_nodes, size=num_nodes * 6)
    inside = rng.random(len(src)) < 0.8
    dst = np.where(
        inside, src // size * size + rng.integers(size, size=len(src)), rng.integers(num_nodes)
    )
    mask = np.arange(num_nodes) < 3 * size
    return graph_from_edges(
        src,
        dst,
        num_nodes=num_nodes,
        symmetrize=True,
        y=np.zeros(num_nodes, int),
        train_mask=mask,
        val_mask=np.zeros(num_nodes, bool),
        test_mask=~mask,
    )


def test_best_meets_every_constraint_and_is_no_worse_than_metis():
    graph = blocks()
    made = partition_graph(graph, 4)
    assert made.method == "best"
    assert make_balance(graph, 4).is_met(made.assignment)
    metis = partition_graph(graph, 4, "metis")
    factor = [measure_quality(graph, p).replication_factor for p in (made, metis)]
    assert factor[0] <= factor[1]
    assert any(note.startswith("from ") for note in made.notes)


def test_best_works_without_mtkahypar(monkeypatch):
    monkeypatch.setattr(best, "has_mtkahypar", lambda: False)
    made = partition_graph(blocks(), 4)
    assert "metis" in made.notes[-1]


def test_best_is_the_same_for_any_number_of_cores(monkeypatch):
    graph = blocks(number=5, size=40)
    made = []
    for cores in (1, 3):
        monkeypatch.setattr(best.os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        made.append(partition_graph(graph, 4).assignment)
    assert np.array_equal(*made)


@pytest.mark.parametrize(
    ("num_edges", "tries"), [(0, 1), (4_999, 1), (5_000, 4), (79_000, 2), (3_000_000, 1)]
)
def test_small_graphs_are_searched_more_often(num_edges, tries):
    assert best._tries(SimpleNamespace(num_edges=num_edges)) == tries


def test_every_try_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(best, "FEW_EDGES", 0)
    monkeypatch.setattr(best, "has_mtkahypar", lambda: True)
    graph = blocks()
    searches = best.Best(seed=7)._searches(graph, make_balance(graph, 4))
    assert len(searches) == 12
    by_method = [{s.partitioner.seed for s in searches if s.name == name}
                 for name in ("metis under all constraints", "metis by nodes")]  # fmt: skip
    assert all(len(seeds) == 4 and 7 in seeds for seeds in by_method)
    assert [s.balance.names for s in searches[2::3]] == [
        ("nodes", "edges", "train"),
        ("nodes",),
    ] * 2


def test_nodes_alone_keep_their_imbalance():
    graph = blocks()
    assert best._nodes_alone(make_balance(graph, 4, "edges:0.01,nodes:0.2")).imbalance == 0.2
    assert best._nodes_alone(make_balance(graph, 4, "edges:0.01,train:0.2")).imbalance == 0.01


def test_metis_is_repaired_where_it_is_above_a_limit(monkeypatch):
    graph = blocks()

    class Unbalanced(best.Metis):
        name = "unbalanced"

        def assign(self, graph, balance):
            parts = np.zeros(graph.num_nodes, np.int32)
            parts[:4] = np.arange(4)
            return parts, ()

    made = partition_graph(graph, 4, Unbalanced())
    assert make_balance(graph, 4).is_met(made.assignment)


@needs_mtkahypar
def test_mtkahypar_keeps_communities_together():
    graph = blocks()
    made = partition_graph(graph, 4, "mtkahypar", balance="nodes")
    assert made.sizes.max() <= 126
    random = partition_graph(graph, 4, "random")
    factor = [measure_quality(graph, p).replication_factor for p in (made, random)]
    assert factor[0] < 0.8 * factor[1]
    again = partition_graph(graph, 4, "mtkahypar", balance="nodes", threads=1)
    assert np.array_equal(made.assignment, again.assignment)


@needs_mtkahypar
def test_mtkahypar_searches_anew_with_each_seed():
    graph = blocks()
    made = [partition_graph(graph, 4, "mtkahypar", seed=seed).assignment for seed in (0, 1, 1)]
    assert not np.array_equal(made[0], made[1])
    assert np.array_equal(made[1], made[2])


@needs_mtkahypar
def test_nets_hold_a_node_and_its_readers(tmp_path):
    graph = graph_from_edges([0, 0, 1, 2, 2, 2], [1, 2, 1, 0, 0, 3], num_nodes=5)
    assert mtkahypar._write_nets(tmp_path, graph)
    pins = np.fromfile(tmp_path / "pins.int64", np.int64)
    bounds = np.fromfile(tmp_path / "net_ptr.int64", np.int64)
    nets = [pins[a:b].tolist() for a, b in pairwise(bounds)]
    assert nets == [[0, 1, 2], [0, 2, 3]]  # of nodes 0 and 2; a self-loop is no reader


def test_weights_fit_in_32_bits():
    weight = np.array([2**33, 2**32, 1])
    assert mtkahypar._within_int32(weight).tolist() == [2**31 // 3, 2**30 // 3, 1]
    assert mtkahypar._within_int32(np.array([5, 7])).tolist() == [5, 7]


def test_mtkahypar_says_how_it_is_installed(monkeypatch):
    monkeypatch.setattr(mtkahypar, "has_mtkahypar", lambda: False)
    with pytest.raises(PartitionError, match=r"pip install gnn-dist\[mtkahypar\]"):
        partition_graph(blocks(), 4, "mtkahypar")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "fast"}, "preset must be 'deterministic' or"),
        ({"threads": -1}, r"threads must be an integer in 0\.\.4096"),
        ({"seed": 2**31}, "seed must be an integer"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(PartitionError, match=message):
        MtKaHyPar(**options)
