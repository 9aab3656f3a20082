from types import SimpleNamespace

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import clusters as reference_clusters
from gnn_dist.ops.reference import local_search as reference_search
from gnn_dist.ops.reference import smooth as reference_smooth
from gnn_dist.partition import Partition, measure_quality
from gnn_dist.partitioners import refine as module
from gnn_dist.partitioners.hypergraph import connectivity, contract, hypergraph_of
from gnn_dist.partitioners.refine import Refinement, refine, smooth

NUM_PARTS = 4


def limits_of(weights, num_parts, imbalance=0.05):
    target = weights.sum(0) / num_parts
    most = np.maximum((1 + imbalance) * target, target + weights.max(0, initial=0))
    return np.tile(np.floor(most + 1e-6).astype(np.int64), (num_parts, 1))


def balance_of(graph, num_parts, imbalance=0.05):
    columns = [np.ones(graph.num_nodes, np.int64), graph.in_degree]
    if graph.train_mask is not None:
        columns.append(graph.train_mask.astype(np.int64))
    weights = np.stack(columns, 1)
    return SimpleNamespace(weights=weights, limits=limits_of(weights, num_parts, imbalance))


def loads(balance, part):
    num_parts = len(balance.limits)
    return np.stack([np.bincount(part, w, num_parts) for w in balance.weights.T], 1)


def excess(balance, part):
    """How far parts are above their limits, each weight in fair shares."""
    share = np.maximum(1, balance.weights.sum(0)) / len(balance.limits)
    return (np.maximum(0, loads(balance, part) - balance.limits) / share).sum()


def replication_factor(graph, part, num_parts):
    return measure_quality(graph, Partition(part, num_parts)).replication_factor


def random_graph(num_nodes=60, num_edges=240, seed=0, symmetrize=False):
    rng = np.random.default_rng(seed)
    # Skewed, so that some nodes are hubs.
    src, dst = (rng.random((2, num_edges)) ** 2 * num_nodes).astype(np.int64)
    return graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=symmetrize)


def random_part(graph, num_parts, seed=1):
    return np.random.default_rng(seed).permutation(graph.num_nodes).astype(np.int32) % num_parts


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]


def for_threads(function):
    """Return the result for 1, 2 and 4 threads, which must be the same."""
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(function())
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert np.array_equal(result, results[0])
    return results[0]


def two_cliques(size=6):
    """Two cliques, node by node in turn, with one edge between them."""
    ids = np.arange(2 * size)
    src, dst = (a.ravel() for a in np.meshgrid(ids, ids))
    inside = (src % 2 == dst % 2) & (src != dst)
    return graph_from_edges(np.append(src[inside], 0), np.append(dst[inside], 1))


STAR = graph_from_edges(np.zeros(8, np.int64), np.arange(1, 9), num_nodes=9)
EDGE_CASES = {
    "one node": graph_from_edges([0], [0]),
    "two nodes": graph_from_edges([0], [1]),
    "no edges": graph_from_edges([], [], num_nodes=7),
    "star": STAR,
    "star inwards": graph_from_edges(np.arange(1, 9), np.zeros(8, np.int64), num_nodes=9),
    "cliques": two_cliques(),
    "path": graph_from_edges(np.arange(19), np.arange(1, 20), symmetrize=True),
}


def test_connectivity_is_the_replication_factor():
    for name in AWKWARD:
        _, graph, partition = awkward_case(name, NUM_PARTS)
        hypergraph = hypergraph_of(graph, np.ones((graph.num_nodes, 1), np.int64))
        part = partition.assignment
        expected = replication_factor(graph, part, NUM_PARTS) * graph.num_nodes
        assert connectivity(hypergraph, part) == pytest.approx(expected, abs=1e-9)
        measured = kernels.smooth_pass(
            *tensors(graph.indptr, graph.indices, np.ones((graph.num_nodes, 1), np.int64)),
            *tensors(np.full((NUM_PARTS, 1), graph.num_nodes), part.astype(np.int32)),
            torch.empty(0),
            1,
        )[1]
        assert measured == connectivity(hypergraph, part)


def test_two_cliques_are_found():
    graph = two_cliques()
    refined = refine(graph, np.arange(12) // 6, balance_of(graph, 2))
    assert len(set(refined[::2])) == len(set(refined[1::2])) == 1
    assert replication_factor(graph, refined, 2) == pytest.approx(13 / 12)


def test_a_cycle_moves_what_no_single_node_would():
    """Pairs of cliques in different parts: each move of a node alone gains nothing."""
    size, cliques = 40, 8
    ids = np.arange(size * cliques)
    src, dst = (a.ravel() for a in np.meshgrid(ids, ids))
    inside = (src // size == dst // size) & (src != dst)
    # Five ties join cliques 0 and 1, 2 and 3, ...
    ties = (np.arange(0, size * cliques, 2 * size)[:, None] + np.arange(5)).ravel()
    ends = np.concatenate([src[inside], ties]), np.concatenate([dst[inside], ties + size])
    graph = graph_from_edges(*ends, symmetrize=True)
    start = ids // size % 2
    # Room for one clique beside the fair share.
    balance = SimpleNamespace(
        weights=np.ones((len(ids), 1), np.int64), limits=np.full((2, 1), 5 * size)
    )
    alone = refine(graph, start, balance, Refinement(cycles=0, shakes=0))
    refined = refine(graph, start, balance)
    assert replication_factor(graph, alone, 2) == replication_factor(graph, start, 2) > 1
    assert replication_factor(graph, refined, 2) == 1


@pytest.mark.parametrize("num_parts", [1, 2, 3, 9])
@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("method", [refine, smooth])
def test_small_graphs(method, name, num_parts):
    graph = EDGE_CASES[name]
    num_parts = min(num_parts, graph.num_nodes)
    start = random_part(graph, num_parts)
    balance = balance_of(graph, num_parts)
    refined = for_threads(lambda: method(graph, start, balance))
    assert refined.dtype == np.int32
    assert len(np.unique(refined)) == num_parts
    assert excess(balance, refined) <= excess(balance, start) + 1e-9
    if excess(balance, start) == 0:
        before, after = (replication_factor(graph, p, num_parts) for p in (start, refined))
        assert after <= before


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("method", [refine, smooth])
def test_awkward_graphs(method, name):
    _, graph, partition = awkward_case(name, NUM_PARTS)
    balance, start = balance_of(graph, NUM_PARTS), partition.assignment
    refined = for_threads(lambda: method(graph, start, balance))
    assert excess(balance, refined) <= excess(balance, start) + 1e-9
    assert set(np.unique(start)) <= set(np.unique(refined))
    if excess(balance, start) == 0:
        before, after = (replication_factor(graph, p, NUM_PARTS) for p in (start, refined))
        assert after <= before


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 60), st.integers(0, 200), st.integers(1, 6), st.integers(0, 99))
def test_limits_are_kept_and_the_replication_factor_never_grows(nodes, edges, num_parts, seed):
    graph = random_graph(nodes, edges, seed)
    num_parts = min(num_parts, nodes)
    start = random_part(graph, num_parts, seed)
    balance = balance_of(graph, num_parts)
    # Whatever the start is, it keeps within these.
    wide = SimpleNamespace(
        weights=balance.weights,
        limits=np.maximum(balance.limits, loads(balance, start).astype(np.int64)),
    )
    before = replication_factor(graph, start, num_parts)
    for method in (refine, smooth):
        refined = method(graph, start, wide, Refinement(seed=seed))
        assert excess(wide, refined) == 0
        assert replication_factor(graph, refined, num_parts) <= before
        assert len(np.unique(refined)) == num_parts
    assert excess(balance, refine(graph, start, balance)) <= excess(balance, start) + 1e-9


def test_an_overloaded_start_is_repaired():
    graph = random_graph(400, 3000, symmetrize=True)
    balance = balance_of(graph, NUM_PARTS)
    for start in (np.zeros(400, np.int32), (np.arange(400) * 4 // 400).astype(np.int32)):
        assert excess(balance, start) > 0
        assert excess(balance, refine(graph, start, balance)) == 0


def test_levelling_repairs_what_single_moves_cannot():
    """Each part is full of one weight and above the other, so every first move makes it worse."""
    weights = np.array([[4, 1]] * 6 + [[1, 4]] * 6)
    graph = graph_from_edges([], [], num_nodes=12)
    start = np.repeat([0, 1], 6)
    balance = SimpleNamespace(weights=weights, limits=np.full((2, 2), 16))
    assert excess(balance, start) > 0
    assert excess(balance, refine(graph, start, balance)) == 0


def test_a_combination_is_at_least_as_good_as_both():
    graph = random_graph(300, 1500, symmetrize=True)
    balance = balance_of(graph, NUM_PARTS)
    options = Refinement(cycles=1)
    parents = [refine(graph, random_part(graph, NUM_PARTS, s), balance, options) for s in (1, 2)]
    factors = [replication_factor(graph, p, NUM_PARTS) for p in parents]
    best, other = (parents[i] for i in np.argsort(factors))
    child = refine(graph, best, balance, Refinement(cycles=0, shakes=0), others=(other,))
    assert excess(balance, child) == 0
    assert replication_factor(graph, child, NUM_PARTS) <= min(factors)


def test_full_parts_swap_nodes():
    """Without room anywhere, nodes still change places."""
    graph = two_cliques(80)
    start = np.arange(160) % 2
    # Three in ten of each clique are where the other one is.
    start[np.arange(160) // 2 % 10 < 3] ^= 1
    balance = SimpleNamespace(weights=np.ones((160, 1), np.int64), limits=np.full((2, 1), 80))
    assert replication_factor(graph, start, 2) == 2
    refined = smooth(graph, start, balance)
    assert (loads(balance, refined) == 80).all()
    assert replication_factor(graph, refined, 2) == pytest.approx(161 / 160)


def test_many_parts():
    graph = random_graph(2000, 8000)
    balance = balance_of(graph, 1024)
    start = random_part(graph, 1024)
    before = replication_factor(graph, start, 1024)
    for method in (refine, smooth):
        refined = method(graph, start, balance, Refinement(cycles=1, rounds=1))
        assert replication_factor(graph, refined, 1024) < before
        assert excess(balance, refined) <= excess(balance, start)


def test_a_memory_map_that_cannot_be_written(tmp_path):
    graph = random_graph(200, 1000)
    np.save(tmp_path / "indices.npy", graph.indices)
    np.save(tmp_path / "indptr.npy", graph.indptr)
    on_disk = SimpleNamespace(
        indptr=np.load(tmp_path / "indptr.npy", mmap_mode="r"),
        indices=np.load(tmp_path / "indices.npy", mmap_mode="r"),
    )
    balance, start = balance_of(graph, NUM_PARTS), random_part(graph, NUM_PARTS)
    expected = smooth(graph, start, balance)
    assert np.array_equal(smooth(on_disk, start, balance), expected)


def test_large_graphs_are_smoothed(monkeypatch):
    graph = random_graph()
    balance, start = balance_of(graph, NUM_PARTS), random_part(graph, NUM_PARTS)
    expected = smooth(graph, start, balance)
    monkeypatch.delattr(module, "hypergraph_of")
    small = Refinement(search_edges=graph.num_edges - 1)
    assert np.array_equal(refine(graph, start, balance, small), expected)
    tight = Refinement(max_bytes=4 * graph.num_nodes)
    assert np.array_equal(refine(graph, start, balance, tight), expected)
    with pytest.raises(PartitionError, match="240 bytes for 60 nodes and 4 parts"):
        refine(graph, start, balance, Refinement(max_bytes=239))


def test_contraction_keeps_connectivity():
    graph = random_graph()
    weights = balance_of(graph, NUM_PARTS).weights
    hypergraph = hypergraph_of(graph, weights)
    clusters = random_part(graph, 12)
    coarse = contract(hypergraph, clusters)
    assert coarse.num_nodes == 12
    assert np.array_equal(coarse.node_weight.sum(0), weights.sum(0))
    assert coarse.num_nets < hypergraph.num_nets
    inside = connectivity(hypergraph, clusters * 0) - connectivity(coarse, np.zeros(12, int))
    for seed in range(5):
        coarse_part = np.random.default_rng(seed).integers(0, NUM_PARTS, 12)
        fine = connectivity(hypergraph, coarse_part[clusters])
        assert fine == connectivity(coarse, coarse_part) + inside


def cases():
    for seed, (nodes, edges, parts) in enumerate(
        [(40, 200, 3), (25, 60, 5), (60, 100, 2), (12, 100, 4), (30, 0, 3), (1, 1, 1)]
    ):
        yield random_graph(nodes, edges, seed), parts, seed


@pytest.mark.parametrize("balanced", [True, False])
def test_local_search_equals_its_reference(balanced):
    for graph, parts, seed in cases():
        balance = balance_of(graph, parts, 0.1)
        start = random_part(graph, parts, seed)
        if not balanced:
            start = np.minimum(start, 1)
        arguments = (
            *tensors(*hypergraph_of(graph, balance.weights).arrays, balance.limits, start),
            *(5, 3, 7 + seed),
        )
        expected = reference_search.local_search(*arguments)
        assert torch.equal(kernels.local_search(*arguments), expected)


def test_local_search_of_a_large_graph_equals_its_reference():
    # From some size on no search begins by losing much: hubs are where that shows.
    rng = np.random.default_rng(3)
    num_nodes = reference_search.FEW + 200
    src, dst = (num_nodes * rng.random((2, 5000)) ** 3).astype(np.int64)
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, symmetrize=True)
    balance = balance_of(graph, 3, 0.1)
    arrays = hypergraph_of(graph, balance.weights).arrays
    arguments = (*tensors(*arrays, balance.limits, random_part(graph, 3)), 3, 1, 1)
    expected = reference_search.local_search(*arguments)
    assert torch.equal(kernels.local_search(*arguments), expected)


def test_clusters_equal_their_reference():
    for graph, parts, seed in cases():
        weights = balance_of(graph, parts).weights
        labels = random_part(graph, 2, seed)
        most = np.array([5, 30])[: weights.shape[1]]
        arguments = (
            *tensors(*hypergraph_of(graph, weights).arrays, most, labels),
            *(20, seed),
        )
        found = kernels.cluster_nodes(*arguments)
        assert torch.equal(found, reference_clusters.cluster_nodes(*arguments))
        found = found.numpy()
        total = np.zeros((found.max() + 1, 2), np.int64)
        np.add.at(total, found, weights)
        several = np.bincount(found) > 1
        assert (total[several] <= most).all()
        for cluster in np.unique(found):
            assert len(set(labels[found == cluster])) == 1


@pytest.mark.usefixtures("instruction_set")
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
def test_smoothed_passes_equal_their_reference(alpha):
    # The last one has a count that is full.
    wide = graph_from_edges(np.zeros(700, np.int64), np.arange(700), num_nodes=700)
    for graph, parts, seed in [*cases(), (wide, 2, 3)]:
        balance = balance_of(graph, parts, 0.02)
        start = random_part(graph, parts, seed)
        fixed = tensors(graph.indptr, graph.indices, balance.weights, balance.limits, start)
        arguments = (*fixed, torch.from_numpy(module._costs(alpha)), 7)
        expected, value = reference_smooth.smooth_pass(*arguments)
        assert value == kernels.smooth_pass(*arguments)[1]
        found = for_threads(lambda arguments=arguments: kernels.smooth_pass(*arguments)[0])
        assert torch.equal(torch.as_tensor(found), expected)


def search_arguments():
    graph = random_graph()
    balance = balance_of(graph, NUM_PARTS)
    hypergraph = hypergraph_of(graph, balance.weights)
    return [*tensors(*hypergraph.arrays, balance.limits, random_part(graph, NUM_PARTS)), 5, 2, 0]


def replaced(arguments, position, value):
    return [*arguments[:position], value, *arguments[position + 1 :]]


def test_kernels_refuse_what_does_not_fit():
    arguments = search_arguments()
    net_ptr, nets, pins, part = (arguments[i] for i in (0, 1, 3, 7))
    falling = net_ptr.clone()
    falling[3] = falling[2] - 1
    for position, value in [(0, falling), (1, nets + 60), (3, pins - 1), (7, part + 1)]:
        with pytest.raises(IndexError):
            kernels.local_search(*replaced(arguments, position, value))
    for position, value in [
        (0, net_ptr.int()),
        (0, net_ptr[:0]),
        (1, nets.long()),
        (4, arguments[4][1:]),
        (5, -arguments[5]),
        (6, arguments[6][:, :1]),
        (7, part[1:]),
        (7, part.long()),
    ]:
        with pytest.raises(ValueError, match="must"):
            kernels.local_search(*replaced(arguments, position, value))


def test_smoothed_passes_refuse_what_does_not_fit():
    graph = random_graph()
    balance = balance_of(graph, NUM_PARTS)
    part = random_part(graph, NUM_PARTS)
    fixed = tensors(graph.indptr, graph.indices, balance.weights, balance.limits, part)
    arguments = [*fixed, torch.zeros(256), 8]
    for position, value in [(1, fixed[1] + 60), (4, fixed[4] - 1), (0, fixed[0].flip(0))]:
        with pytest.raises(IndexError):
            kernels.smooth_pass(*replaced(arguments, position, value))
    for position, value in [(5, torch.zeros(255)), (6, 0), (2, fixed[2][1:]), (3, fixed[3][:0])]:
        with pytest.raises(ValueError, match="must"):
            kernels.smooth_pass(*replaced(arguments, position, value))


@pytest.mark.parametrize("method", [refine, smooth])
def test_arguments_are_checked(method):
    graph = random_graph()
    balance, start = balance_of(graph, NUM_PARTS), random_part(graph, NUM_PARTS)
    with pytest.raises(PartitionError, match=r"must lie in 0\.\.3, got 1\.\.4"):
        method(graph, start + 1, balance)
    with pytest.raises(PartitionError, match="an integer for each of 60 nodes"):
        method(graph, start[1:], balance)
    narrow = SimpleNamespace(weights=balance.weights[:, :1], limits=balance.limits)
    with pytest.raises(PartitionError, match="weights must be of shape"):
        method(graph, start, narrow)
    with pytest.raises(PartitionError, match="patience"):
        Refinement(patience=0)
