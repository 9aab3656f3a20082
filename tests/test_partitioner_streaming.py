"""ldg, fennel, spring and metis-stream: exact values, limits, sources, and what they refuse."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import measure_quality
from gnn_dist.partitioners import partition_graph
from gnn_dist.partitioners.balance import make_balance
from gnn_dist.partitioners.clusters import Clusters, cluster_graph
from gnn_dist.partitioners.fennel import Fennel
from gnn_dist.partitioners.ldg import Ldg
from gnn_dist.partitioners.metis_stream import MetisStream
from gnn_dist.partitioners.restream import finished, relieved, shares_of
from gnn_dist.partitioners.sources import EdgeSource, degrees
from gnn_dist.partitioners.spring import Spring

VERTEX = [Ldg, Fennel]
EDGE = [Spring, MetisStream]
ALL = VERTEX + EDGE


@dataclass(frozen=True)
class Stream:
    """A stand-in for a stream of edges: those of a graph, in a random order."""

    graph: object
    seed: int = 0
    dtype: type = np.int64

    @property
    def num_nodes(self):
        return self.graph.num_nodes

    @property
    def num_edges(self):
        return self.graph.num_edges

    def chunks(self, chunk_edges=1 << 20):
        order = np.random.default_rng(self.seed).permutation(self.num_edges)
        table = np.stack(self.graph.edges(), 1).astype(self.dtype)[order]
        for start in range(0, len(table), min(chunk_edges, 1000)):
            yield tuple(table[start : start + min(chunk_edges, 1000)].T)


@dataclass(frozen=True)
class Maps:
    """A CSR structure on disk: nothing but what is documented."""

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self):
        return len(self.indptr) - 1

    @property
    def num_edges(self):
        return len(self.indices)

    @property
    def in_degree(self):
        return np.diff(self.indptr)


def on_disk(folder, graph):
    for name in ("indptr", "indices"):
        np.save(folder / f"{name}.npy", getattr(graph, name))
    return Maps(*(np.load(folder / f"{n}.npy", mmap_mode="r") for n in ("indptr", "indices")))


def cliques(count, size):
    """Cliques side by side, with the ids of one after those of the other."""
    base = np.repeat(np.arange(count) * size, size * size)
    src = base + np.tile(np.repeat(np.arange(size), size), count)
    dst = base + np.tile(np.arange(size), count * size)
    proper = src != dst
    return graph_from_edges(src[proper], dst[proper], num_nodes=count * size)


def blocks(num_nodes=4096, count=32, inside=8, outside=2, seed=0):
    """A symmetric stochastic block model with shuffled ids."""
    rng = np.random.default_rng(seed)
    size = num_nodes // count
    src = rng.integers(0, num_nodes, num_nodes * (inside + outside) // 2)
    near = src // size * size + rng.integers(0, size, len(src))
    far = rng.integers(0, num_nodes, len(src))
    dst = np.where(rng.random(len(src)) < inside / (inside + outside), near, far)
    name = rng.permutation(num_nodes)
    return graph_from_edges(name[src], name[dst], num_nodes=num_nodes, symmetrize=True)


def skewed(num_nodes=4096, num_edges=40_000, seed=0, symmetrize=False):
    rng = np.random.default_rng(seed)
    src, dst = (num_nodes * rng.random((2, num_edges)) ** 3).astype(np.int64)
    name = rng.permutation(num_nodes)
    train = rng.random(num_nodes) < 0.3
    return graph_from_edges(
        name[src], name[dst], num_nodes=num_nodes, symmetrize=symmetrize, train_mask=train
    )


def relative_rf(graph, partition):
    """Replication factor over that of random parts."""
    random = partition_graph(graph, partition.num_parts, "random")
    return (
        measure_quality(graph, partition).replication_factor
        / measure_quality(graph, random).replication_factor
    )


def assert_within_limits(graph, partition, imbalance=0.05, names="nodes,edges,train"):
    balance = make_balance(graph, partition.num_parts, names, imbalance)
    loads = np.zeros((partition.num_parts, len(balance.names)), np.int64)
    np.add.at(loads, partition.assignment, balance.weights)
    assert (loads <= balance.limits).all(), (loads, balance.limits)


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("num_parts", [2, 4])
def test_cliques_stay_whole(method, num_parts):
    whole = {"cluster_share": 1.0, "merged_share": 1.0} if method is Spring else {}
    parts = method(**whole)(cliques(num_parts, 6), num_parts).assignment.reshape(num_parts, 6)
    assert (parts == parts[:, :1]).all()
    assert sorted(parts[:, 0]) == list(range(num_parts))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # The limits are a node above the mean.
        (Ldg(objective="neighbours", passes=1), [0, 0, 0, 0, 0, 1, 1, 1]),
        (Ldg(objective="halo", passes=1), [0, 0, 0, 0, 0, 1, 1, 1]),
        (Fennel(objective="neighbours", passes=1), [0, 0, 0, 0, 0, 1, 1, 1]),
        (Fennel(objective="halo", passes=2), [1, 0, 0, 0, 0, 1, 1, 1]),
    ],
)
def test_a_ring_is_cut_twice(method, expected):
    after = (np.arange(8) + 1) % 8
    ring = graph_from_edges(np.arange(8), after, symmetrize=True)
    assert method(ring, 2).assignment.tolist() == expected


@pytest.mark.parametrize("method", ALL)
def test_leaves_of_a_star_are_shared_out(method):
    star = graph_from_edges(np.zeros(12, int), np.arange(1, 13), symmetrize=True)
    sizes = method(balance="nodes")(star, 4).sizes
    assert sizes.sum() == 13
    assert sizes.max() <= 5  # the mean and a node more


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("num_parts", [3, 8])
@pytest.mark.parametrize("symmetrize", [False, True])
def test_limits_are_kept_in_every_constraint(method, num_parts, symmetrize):
    graph = skewed(symmetrize=symmetrize)
    partition = method(imbalance=0.1)(graph, num_parts)
    assert_within_limits(graph, partition, 0.1)
    assert partition.notes == ()


def test_relief_moves_as_few_nodes_as_it_can():
    balance = make_balance(cliques(1, 8), 2, "nodes", 0.0)
    assert balance.limits.tolist() == [[5], [5]]
    degree = np.array([9, 9, 1, 9, 9, 2, 9, 9])
    parts = relieved(np.array([0, 0, 0, 0, 0, 0, 0, 1], np.int32), shares_of(balance), degree)
    assert parts.tolist() == [0, 0, 1, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("method", ALL)
def test_parts_may_have_different_shares(method):
    graph = blocks()
    partition = method(balance="nodes", part_weights=(1, 2, 1))(graph, 3)
    shares = partition.sizes / graph.num_nodes
    assert np.abs(shares - [0.25, 0.5, 0.25]).max() < 0.06


@pytest.mark.parametrize(
    ("method", "bar"),
    [
        (Ldg(), 0.72),
        (Fennel(), 0.72),
        (MetisStream(), 0.72),
        (Ldg(objective="neighbours"), 0.85),
        (Spring(), 0.98),
    ],
)
def test_blocks_are_found(method, bar):
    graph = blocks()
    assert relative_rf(graph, method(graph, 4)) < bar


def test_halo_objective_and_passes_pay():
    graph = skewed(symmetrize=True)

    def rf(**options):
        return measure_quality(graph, Fennel(**options)(graph, 8)).replication_factor

    assert rf(objective="halo", passes=5) < rf(objective="neighbours", passes=5)
    assert rf(objective="halo", passes=6) < rf(objective="halo", passes=1)


def test_halo_is_the_objective_where_its_table_is_small():
    assert Fennel().counts_pins(2**29, 8)
    assert not Fennel().counts_pins(2**29 + 1, 8)
    assert Fennel(objective="halo").counts_pins(2**40, 8)
    assert not Ldg(objective="neighbours").counts_pins(10, 2)


def test_readers_count_in_directed_graphs():
    # Nodes 6..11 read 0..5 in two groups, while 0..5 read nothing: where the readers' earlier
    # sources went is known from pins alone.
    src = np.r_[np.repeat([0, 1, 2], 3), np.repeat([3, 4, 5], 3)]
    dst = np.r_[np.tile([6, 7, 8], 3), np.tile([9, 10, 11], 3)]
    graph = graph_from_edges(src, dst)
    for method in VERTEX:
        partition = method(passes=6)(graph, 2)
        assert measure_quality(graph, partition).replication_factor <= 1.5


@pytest.mark.parametrize("method", ALL)
def test_threads_do_not_matter(method):
    graph = skewed()
    before = torch.get_num_threads()
    try:
        made = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            made.append(method()(graph, 5).assignment)
    finally:
        torch.set_num_threads(before)
    assert all(np.array_equal(made[0], other) for other in made[1:])


@pytest.mark.parametrize("method", ALL)
def test_rows_on_disk_give_the_same_parts(method, tmp_path):
    graph = blocks()
    names = "nodes,edges"
    assert np.array_equal(
        method(balance=names)(graph, 4).assignment,
        method(balance=names)(on_disk(tmp_path, graph), 4).assignment,
    )


@pytest.mark.parametrize("method", EDGE)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_streams_of_edges_are_partitioned(method, dtype):
    graph = skewed(symmetrize=True)
    stream = Stream(graph, dtype=dtype)
    assert isinstance(stream, EdgeSource)
    partition = method(imbalance=0.1)(stream, 4)
    assert partition.sizes.sum() == graph.num_nodes
    assert_within_limits(graph, partition, 0.1, "nodes,edges")
    assert relative_rf(graph, partition) < 0.98
    assert np.array_equal(partition.assignment, method(imbalance=0.1)(stream, 4).assignment)


@pytest.mark.parametrize("method", VERTEX)
def test_vertex_streams_refuse_edges_in_any_order(method):
    with pytest.raises(PartitionError, match="grouped by destination"):
        method()(Stream(blocks()), 4)


def test_degrees_of_a_stream():
    graph = skewed()
    counted = degrees(Stream(graph))
    src, dst = graph.edges()
    assert np.array_equal(counted.in_degree, graph.in_degree)
    assert np.array_equal(
        counted.degree, np.bincount(src, minlength=4096) + np.bincount(dst, minlength=4096)
    )


def test_graph_of_clusters():
    graph = skewed(num_nodes=300, num_edges=2000)
    of = np.random.default_rng(1).integers(0, 20, 300).astype(np.int32)
    clusters = Clusters(of, np.ones((20, 1), int))
    rows = cluster_graph(graph, clusters, most_pairs=10_000)
    expected = np.zeros((20, 20), int)
    src, dst = graph.edges()
    np.add.at(expected, (of[src], of[dst]), 1)
    expected += expected.T
    np.fill_diagonal(expected, 0)
    found = np.zeros((20, 20), int)
    found[np.repeat(np.arange(20), np.diff(rows.indptr)), rows.indices] = rows.edge_weight
    assert np.array_equal(found, expected)


def test_few_pairs_of_clusters_are_enough():
    graph = blocks()
    # Room for 218 of some 20000 pairs.
    partition = MetisStream(memory_limit=1 << 16, passes=0)(graph, 4)
    assert_within_limits(graph, partition)


@pytest.mark.parametrize("count", [1, 5, 60, 99, 100, 101])
def test_bundles_keep_their_number_and_weight(count):
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 9, (100, 2))
    clusters = Clusters(np.arange(100, dtype=np.int32), weights)
    bundled = clusters.bundled(count, np.array([20, 20]))
    assert bundled.num_clusters <= count
    assert set(bundled.of) == set(range(bundled.num_clusters))
    sums = np.zeros_like(bundled.weights)
    np.add.at(sums, bundled.of, weights)
    assert np.array_equal(sums, bundled.weights)


@pytest.mark.parametrize("method", ALL)
def test_a_million_isolated_nodes(method):
    src, dst = np.arange(999), np.arange(1, 1000)
    graph = graph_from_edges(src, dst, num_nodes=1_000_000, symmetrize=True)
    partition = method()(graph, 7)
    assert_within_limits(graph, partition)
    assert measure_quality(graph, partition).edge_cut < 200


@pytest.mark.parametrize("method", ALL)
def test_one_part_and_one_node_each(method):
    graph = cliques(1, 7)
    assert method()(graph, 1).assignment.tolist() == [0] * 7
    assert method()(graph, 7).assignment.tolist() == list(range(7))


def test_overfull_parts_are_reported():
    balance = make_balance(cliques(1, 8), 2)
    assert balance.limits.tolist() == [[5, 35], [5, 35]]
    even = finished(cliques(1, 8), np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32), 2, balance)
    assert even.notes == ()
    uneven = finished(cliques(1, 8), np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int32), 2, balance)
    assert uneven.notes == (
        "the parts' nodes could not be balanced: up to 1.50 of a share",
        "the parts' edges could not be balanced: up to 1.50 of a share",
    )


def test_empty_parts_are_filled():
    balance = make_balance(cliques(1, 8), 3)
    made = finished(cliques(1, 8), np.zeros(8, np.int32), 3, balance)
    assert made.sizes.min() >= 1
    assert "2 of 3 parts were left empty" in made.notes[0]


@pytest.mark.parametrize("order", ["id", "random"])
def test_orders(order):
    graph = blocks()
    a, b = (Fennel(order=order, seed=s)(graph, 4).assignment for s in (1, 2))
    assert np.array_equal(a, b) == (order == "id")


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (Ldg, {"passes": 0}, "passes"),
        (Ldg, {"objective": "cut"}, "objective"),
        (Fennel, {"order": "bfs"}, "order"),
        (Fennel, {"strength": -1}, "strength"),
        (Fennel, {"imbalance": -0.1}, "imbalance"),
        (Spring, {"cluster_share": 2}, "cluster_share"),
        (MetisStream, {"memory_limit": 0}, "memory_limit"),
        (MetisStream, {"nodes_per_cluster": 0}, "nodes_per_cluster"),
    ],
)
def test_bad_options_are_refused(method, options, words):
    with pytest.raises(PartitionError, match=words):
        method(**options)


@pytest.mark.parametrize("options", [{"balance": "cores"}, {"part_weights": (1.0, 2.0)}])
@pytest.mark.parametrize("method", ALL)
def test_options_that_do_not_fit_the_graph_are_refused(method, options):
    with pytest.raises(PartitionError):
        method(**options)(blocks(), 3)
