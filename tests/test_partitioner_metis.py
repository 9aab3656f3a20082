"""METIS behind its front end: quality, options, and input that harms or misleads bare METIS."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from gnn_dist import partitioners
from gnn_dist.errors import PartitionError
from gnn_dist.graph import Graph, graph_from_edges
from gnn_dist.partition import measure_quality
from gnn_dist.partitioners import Metis, child_process, metis
from gnn_dist.partitioners.balance import make_balance

DATA = os.environ.get("GNN_DIST_DATA")


def partition_graph(graph, num_parts, method="metis", **options):
    return partitioners.partition_graph(graph, num_parts, method, **options)


def grid(side):
    node = np.arange(side * side).reshape(side, side)
    src = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    dst = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    return graph_from_edges(src, dst, symmetrize=True)


def skewed(num_nodes=3000, num_edges=20_000):
    """A graph whose low ids have most of the edges."""
    rng = np.random.default_rng(0)
    src, dst = (num_nodes * rng.random((2, num_edges)) ** 4).astype(np.int64)
    return graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=True)


def clique(size):
    src, dst = np.divmod(np.arange(size * size), size)
    return graph_from_edges(src[src != dst], dst[src != dst])


def star(leaves):
    hub = np.zeros(leaves, int)
    return graph_from_edges(hub, np.arange(1, leaves + 1), symmetrize=True)


# ---- quality


@pytest.mark.parametrize(
    "options", [{}, {"recursive": True}, {"objective": "volume"}, {"tries": 3}]
)
def test_a_grid_is_cut_along_short_lines(options):
    graph = grid(20)
    quality = measure_quality(graph, partition_graph(graph, 4, **options))
    assert quality.edge_cut <= 1.4 * 2 * 40  # two straight lines cut 40 undirected edges
    assert quality.balance["nodes"] < 1.1
    assert quality.balance["edges"] < 1.1


def test_components_are_not_cut():
    one = clique(6)
    src, dst = one.edges()
    graph = graph_from_edges(np.append(src, src + 6), np.append(dst, dst + 6))
    assert measure_quality(graph, partition_graph(graph, 2)).edge_cut == 0


def test_repeated_edges_weigh_more():
    # A ring of 8 in which all edges but 1 -> 2 and 5 -> 6 are there ten times.
    src = np.repeat(np.arange(8), [10, 1, 10, 10, 10, 1, 10, 10])
    graph = graph_from_edges(src, (src + 1) % 8)
    partition = partition_graph(graph, 2, balance="nodes")
    assert measure_quality(graph, partition).edge_cut == 2


def test_each_constraint_is_met_on_a_skewed_graph():
    graph = skewed()
    balance = {
        name: measure_quality(graph, partition_graph(graph, 4, balance=by)).balance
        for name, by in [("nodes", "nodes"), ("edges", "edges"), ("both", "nodes,edges")]
    }
    assert balance["nodes"]["nodes"] < 1.05
    assert balance["nodes"]["edges"] > 1.5
    assert balance["edges"]["edges"] < 1.06
    assert balance["both"]["edges"] < 1.06
    assert balance["both"]["nodes"] < 1.06
    assert balance["edges"]["nodes"] > 1.1


def test_imbalance_is_passed_on():
    tight = partition_graph(grid(12), 3, balance="nodes", recursive=False, imbalance=0.001)
    assert tight.sizes.max() <= 49
    own = partition_graph(grid(12), 3, balance="nodes:0.001", recursive=False, imbalance=0.5)
    assert own.assignment.tolist() == tight.assignment.tolist()


def test_parts_get_the_shares_that_are_asked_for():
    graph = grid(20)
    partition = partition_graph(graph, 3, balance="nodes,edges", part_weights=(0.5, 0.3, 0.2))
    quality = measure_quality(graph, partition)
    for counts, total in ((quality.num_nodes, 400), (quality.num_edges, graph.num_edges)):
        assert np.all(np.array(counts) <= 1.06 * total * np.array([0.5, 0.3, 0.2]))


def test_a_column_of_the_user_is_balanced(tmp_path):
    cost = np.zeros(400, np.int64)
    cost[:40] = 7  # two rows of the grid, which short lines would leave in one part
    np.save(tmp_path / "cost.npy", cost)
    partition = partition_graph(grid(20), 4, balance=f"nodes,{tmp_path / 'cost.npy'}")
    assert np.bincount(partition.assignment, cost).max() <= 77  # 70, and one node more
    assert partition.sizes.max() <= 105


def test_constraints_are_folded_where_metis_cannot_be_reached(monkeypatch, tmp_path):
    worker = child_process.WORKER.read_text()
    (tmp_path / "worker.py").write_text(worker.replace("METIS_PartGraph", "METIS_Absent"))
    monkeypatch.setattr(child_process, "WORKER", tmp_path / "worker.py")
    graph = skewed()
    partition = partition_graph(graph, 4, balance="nodes,edges")
    assert "were folded into one weight" in partition.notes[0]
    quality = measure_quality(graph, partition)
    assert 1.06 < quality.balance["edges"] < 1.6
    one = partition_graph(graph, 4, balance="edges")
    assert one.notes == ()
    assert measure_quality(graph, one).balance["edges"] < 1.1


def test_seeds_are_passed_on():
    graph = skewed(500, 2000)
    first, second = (partition_graph(graph, 4, seed=seed).assignment for seed in (1, 2))
    assert not np.array_equal(first, second)


@pytest.mark.skipif(not DATA, reason="GNN_DIST_DATA is not set")
@pytest.mark.parametrize("name", ["cora_ml", "amazon_photo"])
def test_real_graphs_are_cut_far_below_random(name):
    with np.load(Path(DATA) / f"{name}.npz") as file:
        graph = Graph(file["indptr"], file["indices"], name=name)
    quality = measure_quality(graph, partition_graph(graph, 4))
    random = measure_quality(graph, partition_graph(graph, 4, "random"))
    assert quality.edge_cut_fraction < 0.4 * random.edge_cut_fraction
    assert quality.replication_factor < random.replication_factor
    assert quality.balance["edges"] < 1.2


# ---- what METIS mishandles


def test_one_part_and_one_node_a_part_need_no_child(monkeypatch):
    monkeypatch.setattr(metis, "run_metis", None)
    assert partition_graph(grid(3), 1).assignment.tolist() == [0] * 9
    assert partition_graph(grid(3), 9).assignment.tolist() == list(range(9))


def test_297_nodes_in_64_parts_leave_none_empty():
    src, dst = grid(18).edges()
    inside = (src < 297) & (dst < 297)
    graph = graph_from_edges(src[inside], dst[inside], num_nodes=297)
    for balance in ("nodes", "edges"):
        partition = partition_graph(graph, 64, balance=balance)
        assert partition.sizes.min() > 0
        assert partition.sizes.max() <= 10


def test_empty_parts_of_metis_are_filled_and_noted(monkeypatch):
    monkeypatch.setattr(metis, "run_metis", lambda *a, **k: (np.zeros(8, np.int32), False))
    graph = graph_from_edges(np.arange(8), (np.arange(8) + 1) % 8)
    partition = partition_graph(graph, 4)
    assert partition.sizes.tolist() == [2, 2, 2, 2]
    assert partition.notes == (
        "metis left 3 of 4 parts empty: 6 nodes of the largest parts were moved there",
    )


@pytest.mark.parametrize("num_parts", [2, 3, 9, 39])
@pytest.mark.parametrize("make", [lambda: star(39), lambda: clique(40)])
def test_stars_and_cliques(make, num_parts):
    partition = partition_graph(make(), num_parts)
    assert partition.sizes.min() > 0


def test_a_star_says_that_its_hub_cannot_be_shared_out():
    graph = graph_from_edges(np.arange(1, 41), np.zeros(40, int))
    partition = partition_graph(graph, 4)
    assert partition.sizes.min() > 0
    assert partition.notes[0].startswith("node 0 alone has 40 of the 40 in-edges")


def test_a_directed_graph_is_cut_like_its_undirected_one():
    graph = grid(16)
    src, dst = graph.edges()
    one_way = graph_from_edges(src[src < dst], dst[src < dst])
    assert measure_quality(one_way, partition_graph(one_way, 4)).edge_cut <= 1.4 * 32


def test_only_self_loops_and_isolated_nodes():
    # Nodes 0..4 have a self-loop, 5..9 nothing: there is no edge to give to METIS.
    graph = graph_from_edges(np.arange(5), np.arange(5), num_nodes=10)
    by_nodes = partition_graph(graph, 3, balance="nodes")
    assert by_nodes.sizes.tolist() == [3, 4, 3]
    # A self-loop is an in-edge: the five nodes that have one level the edges, the rest the nodes.
    both = partition_graph(graph, 3, balance="nodes,edges")
    assert np.bincount(both.assignment[:5]).tolist() == [2, 1, 2]
    assert sorted(both.sizes.tolist()) == [3, 3, 4]
    assert by_nodes.notes == both.notes == ()


def test_fewer_linked_nodes_than_parts_need_no_child(monkeypatch):
    monkeypatch.setattr(metis, "run_metis", None)
    graph = graph_from_edges([0, 5], [5, 9], num_nodes=10)
    partition = partition_graph(graph, 4, balance="nodes")
    assert sorted(partition.sizes.tolist()) == [2, 2, 3, 3]
    assert len(set(partition.assignment[[0, 5, 9]])) == 3


def test_isolated_nodes_level_the_parts():
    graph = graph_from_edges(*clique(9).edges(), num_nodes=29)
    sizes = partition_graph(graph, 4, balance="nodes").sizes
    assert sizes.max() - sizes.min() <= 1


def test_a_million_isolated_nodes_are_quick():
    graph = graph_from_edges([0, 1, 2, 3], [1, 2, 3, 0], num_nodes=1_000_000)
    start = time.perf_counter()
    partition = partition_graph(graph, 8)
    assert time.perf_counter() - start < 20  # a few seconds on an idle machine
    assert partition.sizes.max() - partition.sizes.min() <= 3


def test_more_copies_than_the_largest_edge_weight():
    src = np.concatenate([np.zeros(5000, int), [1, 2, 3]])
    dst = np.concatenate([np.ones(5000, int), [2, 3, 0]])
    partition = partition_graph(graph_from_edges(src, dst), 2, balance="nodes")
    assert partition.assignment[0] == partition.assignment[1]


# ---- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"balance": "trian"}, "balance must name nodes, .* got 'trian': did you mean 'train'"),
        ({"balance": "nodes,nodes:0.1"}, "balance must name each of its constraints once"),
        ({"balance": ""}, "balance must name each of its constraints once, got ''"),
        ({"balance": "nodes:-1"}, "the imbalance of nodes must be a number between 0.0"),
        ({"part_weights": (0.5, 0.0)}, "part_weights must be positive"),
        ({"objective": "edges"}, "objective must be 'cut' or 'volume'"),
        ({"seed": 2**31}, r"seed must be an integer in 0\.\.2147483647"),
        ({"tries": 0}, r"tries must be an integer in 1\.\.1000, got 0"),
        ({"imbalance": -1}, "imbalance must be a number between 0.0 and 1000.0, got -1.0"),
        ({"imbalance": float("nan")}, "got nan"),
        ({"recursive": "yes"}, "recursive must be True, False or None, got 'yes'"),
        ({"recursive": True, "objective": "volume"}, "must go with recursive=False"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(PartitionError, match=message):
        Metis(**options)


@pytest.mark.parametrize(
    ("options", "num_parts", "recursive"),
    [
        ({"balance": "nodes"}, 8, True),
        ({"balance": "nodes"}, 9, False),
        ({"balance": "edges"}, 2, False),
        ({"balance": "nodes", "objective": "volume"}, 2, False),
        ({"balance": "edges", "recursive": True}, 9, True),
        ({"balance": "nodes", "recursive": False}, 2, False),
    ],
)
def test_bisection_is_used_where_it_was_better(options, num_parts, recursive):
    balance = make_balance(grid(4), num_parts, options["balance"])
    assert Metis(**options)._is_recursive(balance) is recursive


def test_options_reach_metis_in_its_own_words():
    made = Metis(seed=5, objective="volume", tries=7)._metis_options()
    assert made == {"seed": 5, "ncuts": 7, "objtype": 1}
    assert Metis()._metis_options() == {"seed": 0, "ncuts": 1, "objtype": 0}
