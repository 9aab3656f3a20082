"""Passes of streaming partitioners against their references, and what they refuse."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnn_dist.graph import graph_from_edges
from gnn_dist.ops import streaming
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference import clustering
from gnn_dist.ops.reference import streaming as reference
from gnn_dist.ops.streaming import ClusterState, PairCounts, Placement, Rows, Shares

TINY = np.finfo(np.float64).tiny


def random_rows(rng, num_nodes, num_edges, index=np.int32):
    """A multigraph with self-loops and hubs."""
    src, dst = (num_nodes * rng.random((2, num_edges)) ** 2).astype(np.int64)
    graph = graph_from_edges(src, dst, num_nodes=num_nodes)
    return graph.indptr, graph.indices.astype(index)


def random_shares(rng, num_nodes, num_parts, num_constraints):
    weight = rng.integers(0, 4, (num_nodes, num_constraints))
    targets = np.maximum(rng.random((num_parts, num_constraints)) * num_nodes, TINY)
    limits = np.maximum(1, targets * 1.1).astype(np.int64)
    return Shares(weight, limits, targets)


def pass_arguments(rng, num_nodes, num_edges, num_parts, **options):
    """The operator's arguments, with what earlier passes may have left."""
    indptr, indices = random_rows(rng, num_nodes, num_edges, options.get("index", np.int32))
    shares = random_shares(rng, num_nodes, num_parts, options.get("constraints", 2))
    rows = Rows(indptr, indices)
    counted, weighted = options.get("counted", False), options.get("weighted", False)
    with_pins = options.get("pins", False)
    if options.get("placed", counted):
        parts = rng.integers(0, num_parts, num_nodes).astype(np.int32)
        placement = Placement.of(parts, shares, rows if with_pins else None)
        if not counted:
            placement.loads[:] = 0
    else:
        placement = Placement.empty(num_nodes, shares, with_pins=with_pins)
    edge_weight = rng.integers(0, 9, len(indices)).astype(np.int32) if weighted else None
    order = rng.permutation(num_nodes)[: options.get("visited")] if options.get("order") else None
    arrays = (placement.parts, placement.loads, placement.pins, indptr, indices, edge_weight)
    arrays += (order, *shares)
    tensors = [None if a is None else torch.from_numpy(np.array(a)) for a in arrays]
    return [*tensors, options.get("rule", 0), options.get("penalty", 1.5), counted]


def assert_pass_equals_reference(arguments):
    expected = copy.deepcopy(arguments)
    kernels.stream_nodes(*arguments)
    reference.stream_nodes(*expected)
    for name, found, wanted in zip(("parts", "loads", "pins"), arguments, expected, strict=False):
        assert (found is None and wanted is None) or torch.equal(found, wanted), name


@pytest.mark.parametrize("rule", [0, 1])
@pytest.mark.parametrize("pins", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("order", [False, True])
def test_pass_equals_its_reference(rule, pins, counted, index, order):
    rng = np.random.default_rng([rule, pins, counted, order])
    options = {"rule": rule, "pins": pins, "counted": counted, "index": index, "order": order}
    for num_parts in (1, 3, 8, 11):
        assert_pass_equals_reference(pass_arguments(rng, 150, 900, num_parts, **options))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(0, 60), st.integers(1, 17))
def test_any_pass_equals_the_reference(seed, num_nodes, num_edges, num_parts):
    rng = np.random.default_rng(seed)
    pins = bool(rng.integers(2))
    options = {
        "rule": int(rng.integers(2)),
        "pins": pins,
        "counted": bool(rng.integers(2)),
        "weighted": not pins and bool(rng.integers(2)),
        "placed": True,
        "order": bool(rng.integers(2)),
        "visited": int(rng.integers(num_nodes + 1)),
        "constraints": int(rng.integers(1, 4)),
        "penalty": float(rng.choice([0.0, 0.5, 4.0])),
    }
    assert_pass_equals_reference(pass_arguments(rng, num_nodes, num_edges, num_parts, **options))


def test_full_counts_of_pins_stay():
    # A star of 600 leaves, all of which read the hub: its counts pass 255, and 510 rows pass the
    # 255 additions after which sums are emptied.
    hub_reads = graph_from_edges(
        np.r_[np.zeros(600, int), np.arange(1, 601)],
        np.r_[np.arange(1, 601), np.zeros(600, int)],
        num_nodes=601,
    )
    rows = Rows(hub_reads.indptr, hub_reads.indices)
    shares = Shares(np.ones((601, 1), int), np.full((2, 1), 580), np.full((2, 1), 300.5))
    parts = (np.arange(601) % 20 == 1).astype(np.int32)
    placement = Placement.of(parts, shares, rows)
    assert placement.pins[0].tolist() == [255, 30, 0, 0, 0, 0, 0, 0]
    arguments = [placement.parts, placement.loads, placement.pins, *rows[:2]]
    tensors = [torch.from_numpy(a.copy()) for a in arguments]
    tensors += [None, None, *map(torch.from_numpy, shares), 1, 0.0, True]
    assert_pass_equals_reference(tensors)


def test_a_node_joins_its_neighbours_until_the_limit():
    # Node 4 reads 0 to 3; parts 0 and 1 hold two of them each and part 0 has room.
    rows = Rows(np.array([0, 0, 0, 0, 0, 4]), np.arange(4, dtype=np.int32))
    shares = Shares(np.ones((5, 1), int), np.array([[3], [2]]), np.array([[2.5], [2.5]]))
    for rule in ("ldg", "fennel"):
        placement = Placement.of(np.array([0, 0, 1, 1, 1]), shares, None)
        streaming.place_nodes(
            placement, rows, shares, rule=rule, filling=False, order=np.array([4])
        )
        assert placement.parts.tolist() == [0, 0, 1, 1, 0], rule
        assert placement.loads.tolist() == [[3], [2]]


def test_halo_rows_are_what_pins_count():
    rng = np.random.default_rng(3)
    rows = Rows(*random_rows(rng, 60, 300))
    parts = rng.integers(0, 5, 60).astype(np.int32)
    shares = random_shares(rng, 60, 5, 1)
    pins = Placement.of(parts, shares, rows).pins
    expected = np.zeros((60, 5), bool)
    for v in range(60):
        expected[[v, *rows.indices[rows.indptr[v] : rows.indptr[v + 1]]], parts[v]] = True
    assert np.array_equal(pins[:, :5] > 0, expected)


def test_settling_never_adds_halo_rows():
    rng = np.random.default_rng(4)
    rows = Rows(*random_rows(rng, 300, 1500))
    parts = rng.integers(0, 4, 300).astype(np.int32)
    weight = np.ones((300, 1), int)
    shares = Shares(weight, np.full((4, 1), 100), np.full((4, 1), 75.0))
    placement = Placement.of(parts, shares, rows)
    before = np.count_nonzero(placement.pins)
    for _ in range(4):
        streaming.place_nodes(placement, rows, shares, rule="fennel", filling=False)
        after = np.count_nonzero(placement.pins)
        assert after <= before
        before = after
    assert placement.loads.sum() == 300
    assert placement.loads.max() <= 100
    assert np.array_equal(placement.pins, Placement.of(placement.parts, shares, rows).pins)


def test_threads_do_not_matter():
    results = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            arguments = pass_arguments(np.random.default_rng(5), 500, 3000, 4, pins=True, rule=1)
            kernels.stream_nodes(*arguments)
            results.append(arguments[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_memory_maps_are_only_read(tmp_path):
    indptr, indices = random_rows(np.random.default_rng(6), 50, 200)
    np.save(tmp_path / "indptr.npy", indptr)
    np.save(tmp_path / "indices.npy", indices)
    maps = [np.load(tmp_path / f"{n}.npy", mmap_mode="r") for n in ("indptr", "indices")]
    shares = random_shares(np.random.default_rng(7), 50, 3, 1)
    made = []
    for rows in (Rows(indptr, indices), Rows(*maps)):
        placement = Placement.empty(50, shares, with_pins=True)
        streaming.place_nodes(placement, rows, shares, rule="ldg", filling=True)
        made.append(placement.parts)
    assert np.array_equal(*made)


GOOD = {
    "parts": torch.tensor([0, -1, 1], dtype=torch.int32),
    "loads": torch.zeros(2, 1, dtype=torch.int64),
    "pins": None,
    "indptr": torch.tensor([0, 1, 2, 3]),
    "indices": torch.tensor([1, 2, 0], dtype=torch.int32),
    "edge_weight": None,
    "order": None,
    "node_weight": torch.ones(3, 1, dtype=torch.int64),
    "limits": torch.full((2, 1), 2),
    "targets": torch.full((2, 1), 1.5, dtype=torch.float64),
    "rule": 0,
    "penalty": 1.0,
    "counted": False,
}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"parts": torch.tensor([0, 2, 1], dtype=torch.int32)}, IndexError, "parts must lie"),
        ({"parts": torch.tensor([0, -2, 1], dtype=torch.int32)}, IndexError, "parts must lie"),
        ({"parts": torch.tensor([0, 1, 1])}, ValueError, "parts must be"),
        ({"parts": torch.tensor([0], dtype=torch.int32)}, ValueError, "one element per node"),
        ({"loads": torch.zeros(1, 1, dtype=torch.int64)}, ValueError, "loads must be"),
        ({"indices": torch.tensor([1, 3, 0], dtype=torch.int32)}, IndexError, "indices must lie"),
        ({"indices": torch.tensor([1, -1, 0], dtype=torch.int32)}, IndexError, "indices must lie"),
        ({"indices": torch.tensor([1, 2**40, 0])}, IndexError, "indices must lie"),
        ({"indices": torch.tensor([1.0, 2.0, 0.0])}, ValueError, "indices must be"),
        ({"indptr": torch.tensor([0, 2, 1, 3])}, IndexError, "indptr must not fall"),
        ({"indptr": torch.tensor([0, 1, 2, 4])}, IndexError, "indptr must not fall"),
        ({"indptr": torch.tensor([-1, 1, 2, 3])}, IndexError, "indptr must not fall"),
        ({"order": torch.tensor([3])}, IndexError, "order must lie"),
        ({"order": torch.tensor([-1])}, IndexError, "order must lie"),
        ({"edge_weight": torch.ones(2, dtype=torch.int32)}, ValueError, "one element per entry"),
        ({"pins": torch.zeros(3, 2, dtype=torch.uint8)}, ValueError, "multiple of 8"),
        ({"pins": torch.zeros(2, 8, dtype=torch.uint8)}, ValueError, "pins must be"),
        ({"limits": torch.zeros(2, 1, dtype=torch.int64)}, ValueError, "must be positive"),
        ({"targets": torch.zeros(2, 1, dtype=torch.float64)}, ValueError, "must be positive"),
        ({"targets": torch.full((2, 1), torch.nan).double()}, ValueError, "must be positive"),
        ({"penalty": -1.0}, ValueError, "penalty"),
        ({"penalty": float("nan")}, ValueError, "penalty"),
        ({"rule": 2}, ValueError, "rule must be"),
    ],
)
def test_bad_input_of_a_pass_is_refused(change, error, words):
    kernels.stream_nodes(*copy.deepcopy(list(GOOD.values())))
    with pytest.raises(error, match=words):
        kernels.stream_nodes(*copy.deepcopy(list((GOOD | change).values())))


def test_bad_input_of_pins_is_refused():
    pins = torch.zeros(3, 8, dtype=torch.uint8)
    for part in (8, -2):
        with pytest.raises(IndexError, match="parts must lie"):
            kernels.add_pins(
                pins, torch.tensor([0, part, 0]).int(), GOOD["indptr"], GOOD["indices"]
            )
    with pytest.raises(IndexError, match="indices must lie"):
        kernels.add_pins(pins, torch.zeros(3).int(), GOOD["indptr"], GOOD["indices"] + 1)


def random_state(rng, num_nodes, num_edges, share, index=np.int32):
    """Edges, and single nodes as clusters with limits in two constraints."""
    src, dst = (num_nodes * rng.random((2, num_edges)) ** 2).astype(index)
    degree = np.bincount(src, minlength=num_nodes) + np.bincount(dst, minlength=num_nodes)
    load = np.stack([degree, np.ones(num_nodes, int), rng.integers(0, 3, num_nodes)], 1)
    limit = np.maximum(1, share * load.sum(0)).astype(np.int64)
    return src, dst, ClusterState.single(degree, load[:, 1:], limit)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.integers(0, 150),
    st.sampled_from([0.05, 0.2, 0.6]),
    st.sampled_from([np.int32, np.int64]),
    st.booleans(),
)
def test_clusters_equal_the_reference(seed, num_nodes, num_edges, share, index, besides):
    rng = np.random.default_rng(seed)
    src, dst, state = random_state(rng, num_nodes, num_edges, share, index)
    names = ("cluster", "load", "richest", "own")
    wanted = {name: torch.from_numpy(state.nodes[name].copy()) for name in names}
    limit = torch.from_numpy(state.limit)

    def same():
        for name in names:
            assert np.array_equal(state.nodes[name], wanted[name]), name

    cluster, load, richest, own = wanted.values()
    streaming.cluster_edges(state, src, dst, richest=True, besides=besides)
    ends = torch.from_numpy(src), torch.from_numpy(dst)
    clustering.cluster_edges(cluster, load, richest, *ends, own, limit, besides)
    same()
    sums = np.zeros_like(state.nodes["load"])
    np.add.at(sums, state.nodes["cluster"], state.nodes["own"])
    assert np.array_equal(sums, state.nodes["load"])
    streaming.merge_clusters(state)
    clustering.merge_clusters(cluster, load, richest, own, limit)
    same()
    heaviest = np.maximum(state.limit, state.nodes["own"].max(0))
    assert (state.nodes["load"] <= heaviest).all()


def test_clusters_do_not_depend_on_chunks():
    rng = np.random.default_rng(11)
    src, dst, whole = random_state(rng, 300, 2000, 0.1)
    pieces = ClusterState(whole.nodes.copy(), whole.limit)
    streaming.cluster_edges(whole, src, dst, richest=True)
    for start, stop in pairwise((0, 1, 8, 60, 700, 2000)):
        streaming.cluster_edges(pieces, src[start:stop], dst[start:stop], richest=True)
    assert np.array_equal(whole.nodes, pieces.nodes)


def test_records_of_two_constraints_are_cache_lines():
    nodes = streaming.node_records(5, 3)
    assert nodes.itemsize == 64
    assert nodes.ctypes.data % 64 == 0
    assert streaming.node_records(0, 3).shape == (0,)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_ids_are_counted(index):
    ids = np.array([3, 0, 3, 3], index)
    counts, expected = np.arange(5), torch.arange(5)
    streaming.count_ids(counts, ids)
    clustering.count_ids(expected, torch.from_numpy(ids))
    assert counts.tolist() == expected.tolist() == [1, 1, 2, 6, 4]
    for bad in (5, -1):
        with pytest.raises(IndexError, match="ids must lie"):
            streaming.count_ids(counts, np.array([0, bad], index))


def found_pairs(pairs, num_clusters):
    pair, count = pairs.counted()
    low, high = np.divmod(pair, num_clusters)
    return dict(zip(zip(low.tolist(), high.tolist(), strict=True), count.tolist(), strict=True))


def test_pairs_equal_the_reference_while_there_is_room():
    rng = np.random.default_rng(8)
    src, dst = rng.integers(0, 90, (2, 2000))
    cluster = rng.integers(0, 30, 90).astype(np.int32)
    pairs = PairCounts.empty(1024, 30)
    for half in (slice(1000), slice(1000, None)):
        streaming.count_pairs(pairs, src[half], dst[half], cluster)
    expected = clustering.count_pairs(*map(torch.from_numpy, (src, dst, cluster)))
    assert found_pairs(pairs, 30) == expected
    assert pairs.used[0] == len(expected)


def test_without_room_the_heavy_pairs_stay():
    rng = np.random.default_rng(9)
    light = rng.integers(0, 1000, (2, 20_000))
    heavy = np.repeat(rng.permutation(1000)[:80].reshape(2, 40), 300, axis=1)
    src, dst = np.concatenate([light, heavy], 1)[:, rng.permutation(32_000)]
    cluster = np.arange(1000, dtype=np.int32)
    pairs = PairCounts.empty(1024, 1000)
    streaming.count_pairs(pairs, src, dst, cluster)
    found = found_pairs(pairs, 1000)
    assert len(found) == pairs.used[0] <= 768
    for a, b in zip(*np.sort(heavy[:, ::300], axis=0).tolist(), strict=True):
        assert found[a, b] >= 290


def test_counts_of_pairs_stay_at_the_most():
    cluster = np.array([0, 2**24 - 1], np.int32)
    src, dst = np.zeros(40_000, int), np.ones(40_000, int)
    pairs = PairCounts.empty(8, 2**24)
    streaming.count_pairs(pairs, src, dst, cluster)
    assert found_pairs(pairs, 2**24) == {(0, 2**24 - 1): 2**15 - 1}


def broken_state(**fields):
    """A state of five nodes, the first of which has impossible fields."""
    _, _, state = random_state(np.random.default_rng(10), 5, 9, 0.5)
    for name, value in fields.items():
        state.nodes[name][0] = value
    return state


def test_bad_input_of_clustering_is_refused():
    state = broken_state()
    edge, one, far = (np.array([i], np.int32) for i in (0, 1, 5))
    for src, dst in ((edge, far), (far, edge), (edge, -one)):
        with pytest.raises(IndexError, match="src and dst must lie"):
            streaming.cluster_edges(state, src, dst)
    with pytest.raises(ValueError, match="equally long"):
        streaming.cluster_edges(state, np.array([0, 1]), np.array([1]))
    with pytest.raises(ValueError, match="dst must be"):
        streaming.cluster_edges(state, edge, np.array([1]))
    for bad in (5, -1, 2**31 - 1, -(2**31)):
        with pytest.raises(IndexError, match="clusters must lie"):
            streaming.cluster_edges(broken_state(cluster=bad), edge, one)
        with pytest.raises(IndexError, match="clusters must lie"):
            streaming.merge_clusters(broken_state(cluster=bad))
        of = broken_state(cluster=bad).nodes["cluster"].copy()
        with pytest.raises(IndexError, match="clusters must lie"):
            streaming.count_pairs(PairCounts.empty(8, 5), edge, one, of)
    for bad in (5, -2):
        with pytest.raises(IndexError, match="richest must lie"):
            streaming.merge_clusters(broken_state(richest=bad))
    with pytest.raises(ValueError, match="limit must be positive"):
        streaming.merge_clusters(state._replace(limit=np.array([1, 0, 1])))
    with pytest.raises(ValueError, match="nodes must be"):
        streaming.cluster_edges(state._replace(limit=np.array([1, 1])), edge, one)
    for size, count, words in ((9, 5, "power of two"), (8, 0, "num_clus"), (8, 2**24 + 1, "num_")):
        pairs = PairCounts(np.zeros(size, int), np.zeros(1, int), count)
        with pytest.raises(ValueError, match=words):
            streaming.count_pairs(pairs, edge, one, one)
