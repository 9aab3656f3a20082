"""Seeds, samples and rows of minibatches: the same for any number of ranks."""

import itertools
import threading
import time

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case, awkward_cases

from gnn_dist.comm.world import World
from gnn_dist.datasets import load_dataset
from gnn_dist.errors import ConfigError
from gnn_dist.graph import graph_from_edges
from gnn_dist.halo.load import load_shard
from gnn_dist.partition import Partition
from gnn_dist.partitioners import partition_graph
from gnn_dist.sampling.access import access_probability
from gnn_dist.sampling.compact import stored
from gnn_dist.sampling.loader import LoaderOptions, NodeLoader, expected_cost
from gnn_dist.sampling.neighbor import Fanout, make_sampler
from gnn_dist.sampling.prefetch import Prefetch
from gnn_dist.sampling.seeds import BatchPlan, SeedBatches
from gnn_dist.sampling.store import FeatureStore
from gnn_dist.sampling.topology import topology_of
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write all awkward cases, in three parts each."""
    made = []
    for case in awkward_cases(3):
        made.append(tmp_path_factory.mktemp("awkward") / "parts")
        write_partition(case.graph, case.partition, made[-1])
    return made


def edges_of_batches(world, folder, num_neighbors, replace):
    """All edges of all hops of an epoch's batches, by original ids, and their numbers."""
    shard = load_shard(folder, world)
    loader = NodeLoader(
        shard, world, num_neighbors, batch_size=7, seed=3, edges=True, replace=replace
    )
    found = []
    for number, batch in enumerate(loader):
        assert batch.batch_size == batch.blocks[-1].num_dst
        np.testing.assert_array_equal(batch.x, all_rows(shard, world)[batch.n_id])
        for hop, (block, e_id) in enumerate(
            zip(reversed(batch.blocks), reversed(batch.e_id), strict=True)
        ):
            csr, ids = block.structure.csr, block.structure.src_id
            edges = [ids[csr.rows], ids[csr.indices.long()]]
            found += [(number, hop, *edge) for edge in torch.stack(edges, 1).tolist()]
            check_numbers(shard, world, edges, e_id)
    return found


def all_rows(shard, world):
    """Features of all ranks in the order of original ids."""
    gathered = world.transport.all_gather_object((shard.node_id, shard.x))
    out = torch.empty(sum(len(ids) for ids, _ in gathered), shard.x.size(1), dtype=shard.x.dtype)
    for ids, rows in gathered:
        out[ids] = rows
    return out


def check_numbers(shard, world, edges, e_id):
    """An edge's number leads to an edge between the same nodes on the rank that holds it."""
    csr, ids = shard.structure.csr, shard.structure.src_id
    mine = torch.stack([ids[csr.rows], ids[csr.indices.long()]], 1)
    everyone = torch.cat(world.transport.all_gather_object(mine))
    assert torch.equal(everyone[e_id], torch.stack(edges, 1))


def edges_of_folders(world, folders):
    """For each folder and way of drawing what `edges_of_batches` returns."""
    ways = (([2, 3], False), ([2, 2], True))
    return [edges_of_batches(world, folder, *way) for folder in folders for way in ways]


@pytest.fixture(scope="module")
def edges_of_one_rank(folders):
    [found] = run_ranks(edges_of_folders, 1, folders)
    return [grouped([edges]) for edges in found]


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [2, 3])
def test_batches_hold_the_same_edges_for_any_number_of_ranks(
    world_size, folders, edges_of_one_rank
):
    found = run_ranks(edges_of_folders, world_size, folders)
    for case, (expected, *edges) in enumerate(zip(edges_of_one_rank, *found, strict=True)):
        # A node that two ranks need has the same edges on both; one process has them once.
        assert grouped(edges) == expected, AWKWARD[case // 2]


def grouped(found):
    """By batch, hop and destination: the edges as each rank has them, which must agree."""
    groups = {}
    for edges in found:
        here = {}
        for number, hop, dst, src in edges:
            here.setdefault((number, hop, dst), []).append(src)
        for key, sources in here.items():
            groups.setdefault(key, set()).add(tuple(sources))
    assert all(len(group) == 1 for group in groups.values())
    return groups


def whole_neighbourhood(world, folder):
    shard = load_shard(folder, world)
    loader = NodeLoader(shard, world, [-1, -1], batch_size=1, shuffle=False, ahead=0)
    found = {}
    for batch in loader:
        if batch.batch_size:
            block = batch.blocks[-1]
            sources = block.structure.src_id[block.structure.csr.indices.long()]
            found[int(batch.n_id[0])] = sorted(sources.tolist())
    return found


@pytest.mark.parametrize("world_size", [1, 3])
def test_all_neighbours_are_those_of_the_graph(world_size, folders):
    name = "duplicate edges"
    graph = awkward_case(name, 3).graph
    results = run_ranks(whole_neighbourhood, world_size, folders[AWKWARD.index(name)])
    found = {node: sources for result in results for node, sources in result.items()}
    expected = {
        node: sorted(graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist())
        for node in range(graph.num_nodes)
    }
    assert found == expected


def shares(world, original, cost, batch_size, epochs, drop_last):
    """This rank's seeds: every third original id."""
    mine = np.flatnonzero(original % world.world_size == world.rank)
    batches = SeedBatches(
        torch.arange(len(mine)),
        node_id=torch.from_numpy(original[mine]),
        first=1000 * world.rank,
        cost=torch.from_numpy(cost[mine]),
        plan=BatchPlan(batch_size, drop_last=drop_last, seed=5),
        transport=world.transport,
    )
    return [
        [
            (share.ids.tolist(), share.position.tolist(), share.batch_size)
            for share in batches.epoch(e)
        ]
        for e in range(epochs)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_seed_is_in_one_batch_of_an_epoch(world_size):
    original, cost = np.arange(50)[::-1].copy(), np.ones(50, dtype=np.float32)
    alone = run_ranks(shares, 1, original, cost, 16, 2, False)[0]
    results = run_ranks(shares, world_size, original, cost, 16, 2, False)
    for epoch in range(2):
        batches = list(zip(*(result[epoch] for result in results), strict=True))
        assert [b[0][2] for b in batches] == [16, 16, 16, 2]
        for batch, whole in zip(batches, alone[epoch], strict=True):
            assert sorted(p for part in batch for p in part[1]) == sorted(whole[1])
            sizes = [len(part[1]) for part in batch]
            assert max(sizes) - min(sizes) <= 2
        assert sorted(p for b in batches for part in b for p in part[1]) == list(range(50))
    assert alone[0] != alone[1]
    dropped = run_ranks(shares, world_size, original, cost, 16, 1, True)
    assert [share[2] for share in dropped[0][0]] == [16, 16, 16]


def test_costs_are_spread_evenly():
    rng = np.random.default_rng(0)
    cost = rng.pareto(1.5, 4096).astype(np.float32) + 1.0
    original = np.arange(4096)
    results = run_ranks(shares, 3, original, cost, 512, 1, False)
    for batch in zip(*(result[0] for result in results), strict=True):
        loads = [cost[part[1]].sum() for part in batch]
        dearest = max(cost[part[1]].max() for part in batch)
        assert max(loads) <= max(1.05 * np.mean(loads), dearest)


def test_expected_cost_counts_what_is_drawn():
    degree = torch.tensor([0, 3, 100])
    assert expected_cost(degree, Fanout((10,))).tolist() == [1.0, 4.0, 11.0]
    assert expected_cost(degree, Fanout((10, 5))).tolist() == [1.0, 19.0, 61.0]


def fetch(world, rank_ptr, nodes, keep):
    ptr = torch.tensor(rank_ptr)
    first, end = rank_ptr[world.rank], rank_ptr[world.rank + 1]
    ids = torch.arange(first, end)
    tables = {"x": ids.double().view(-1, 1) * torch.ones(3), "id": ids}
    store = FeatureStore(tables, ptr, world.transport, channel=4)
    store.keep(torch.tensor(keep[world.rank], dtype=torch.int64))
    store.counts.reset()
    found = store.locate([torch.tensor(n, dtype=torch.int64) for n in nodes[world.rank]])
    rows = [
        (store.take(f, "x", torch.float32)[:, 1].tolist(), store.take(f, "id").tolist())
        for f in found
    ]
    return rows, store.counts, store.row_bytes


def test_rows_are_fetched_once_and_kept_ones_not_at_all():
    nodes = [[[0, 5, 6, 1], [5, 8]], [[], [0, 0 + 1, 8]], [[], []]]
    keep = [[6], [0, 3, 4], []]  # its own are left out
    results = run_ranks(fetch, 3, [0, 3, 8, 9], nodes, keep)
    for (rows, _, row_bytes), wanted in zip(results, nodes, strict=True):
        assert row_bytes == 3 * 8 + 8
        for (x, ids), asked in zip(rows, wanted, strict=True):
            assert ids == asked
            assert x == [float(i) for i in asked]
    counts = results[0][1]
    assert (counts.rows, counts.remote_rows, counts.cached_rows) == (6, 4, 1)
    assert (counts.fetched_rows, counts.fetched_bytes) == (2, 2 * 32)
    assert counts.hit_rate == 0.25
    assert results[1][1].fetched_rows == 2  # 1 and 8; 0 is kept
    assert np.isnan(results[2][1].hit_rate)


def test_a_table_of_another_length_is_refused():
    world = World.single()
    with pytest.raises(ConfigError, match="row for each of 3 owned nodes, got 2"):
        FeatureStore({"x": torch.ones(2, 1)}, torch.tensor([0, 3]), world.transport, channel=0)


def test_batches_are_not_made_on_other_devices(folders):
    world = World.single("meta")
    with pytest.raises(ConfigError, match="batches are made on CPUs"):
        NodeLoader(None, world, [2], batch_size=1)


@pytest.mark.parametrize("storage", ["fp16", "bf16", "int8"])
def test_what_fewer_bits_cannot_hold_is_refused(storage):
    assert torch.equal(stored(torch.zeros(2, 0), storage)["x"].float(), torch.zeros(2, 0))
    with pytest.raises(ConfigError, match="must be finite"):
        stored(torch.tensor([[1.0, float("nan")]]), storage)


def test_prefetch_keeps_order_and_its_bound():
    made = []

    def make():
        for i in range(10):
            made.append(i)
            yield i

    with Prefetch(make, ahead=2) as items:
        deadline = time.monotonic() + 5.0
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(made) == 3  # two ready, one waits to be put, and no more
        assert list(items) == list(range(10))


def test_prefetch_passes_errors_on_where_they_belong():
    def make():
        yield 1
        raise LookupError("gone")

    items = iter(Prefetch(make, ahead=3))
    assert next(items) == 1
    with pytest.raises(LookupError, match="gone"):
        next(items)


def test_prefetch_that_nobody_wants_ends():
    closed = threading.Event()

    def make():
        try:
            yield from itertools.count()
        finally:
            closed.set()

    before = threading.active_count()
    with Prefetch(make, ahead=1) as items:
        assert next(iter(items)) == 0
    deadline = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_options_are_checked(tmp_path):
    graph = graph_from_edges([0, 1, 2], [1, 2, 0], num_nodes=3)
    write_partition(graph, Partition(np.zeros(3, dtype=np.int64), 1), tmp_path / "parts")
    world = World.single()
    shard = load_shard(tmp_path / "parts", world)
    for options, message in [
        ({"num_neighbors": [], "batch_size": 1}, "num_neighbors"),
        ({"num_neighbors": [2, -2], "batch_size": 1}, "num_neighbors"),
        ({"num_neighbors": [2], "batch_size": 0}, "batch_size must be at least 1"),
        ({"num_neighbors": [2], "batch_size": 1, "bulk": 0}, "bulk"),
        ({"num_neighbors": [2], "batch_size": 1, "input_nodes": torch.tensor([3])}, "local ids"),
        ({"num_neighbors": [2], "batch_size": 1, "input_nodes": torch.tensor([1, 1])}, "twice"),
        ({"num_neighbors": [2], "batch_size": 1, "input_nodes": torch.ones(2).bool()}, "mask of 3"),
        ({"num_neighbors": [2], "batch_size": 9, "drop_last": True}, "too few"),
        ({"num_neighbors": [2], "batch_size": 1, "input_nodes": torch.zeros(3).bool()}, "no rank"),
    ]:
        with pytest.raises(ConfigError, match=message):
            NodeLoader(shard, world, **options)
    # A graph without features and labels has batches all the same.
    [batch] = NodeLoader(shard, world, [2], batch_size=5)
    assert (batch.x, batch.y, batch.size) == (None, None, 3)
    assert LoaderOptions().bulk == 4


def test_weights_decide_what_is_drawn(tmp_path):
    world = World.single()
    src = np.concatenate([np.arange(1, 9), [0]])
    dst = np.concatenate([np.zeros(8, dtype=np.int64), [1]])
    graph = graph_from_edges(src, dst, num_nodes=9)
    write_partition(graph, Partition(np.zeros(9, dtype=np.int64), 1), tmp_path / "parts")
    topology = topology_of(load_shard(tmp_path / "parts", world), world.transport)
    weight = torch.zeros(9)
    weight[[2, 5]] = 1.0  # of node 0's entries, the sources 3 and 6
    sampler = make_sampler(topology, Fanout((2,)), world.transport, weight=weight)
    [sample] = sampler.sample([torch.tensor([0])], [0])
    assert sample.n_id.tolist() == [0, 3, 6]


def measured_and_expected(world, folder, cache_rows):
    """Hit rates of an epoch, and the best that any cache of that size could have had."""
    shard = load_shard(folder, world)
    loader = NodeLoader(
        shard,
        world,
        [4, 3],
        batch_size=64,
        input_nodes=shard.node_id % 2 == 0,
        sums=False,
        cache_bytes=cache_rows * (4 * shard.x.size(1) + 8),  # and the original id
    )
    first, end = loader._store._first, loader._store._end
    remote = []
    real = loader._store.locate
    loader._store.locate = lambda nodes: (remote.extend(nodes), real(nodes))[1]
    for _ in range(4):
        list(loader)
    ids = torch.cat(remote)
    uses = torch.bincount(ids[(ids < first) | (ids >= end)])
    best = uses.sort(descending=True).values[: loader._store.num_kept].sum() / uses.sum()
    return loader.counts.hit_rate, loader.expected_hit_rate, float(best), loader._store.num_kept


def test_the_cache_keeps_what_is_needed_most(tmp_path):
    graph = load_dataset("rmat:scale=11,degree=8,features=4")
    write_partition(graph, partition_graph(graph, 3, "random"), tmp_path / "parts")
    for measured, expected, best, kept in run_ranks(
        measured_and_expected, 3, tmp_path / "parts", 130
    ):
        assert kept == 130
        assert abs(measured - expected) < 0.05
        assert measured > 0.9 * best
        assert best > 0.2  # so that there is something to win


def exact_chances(world, folder):
    shard = load_shard(folder, world)
    topology = topology_of(shard, world.transport)
    seeds = torch.zeros(shard.num_owned, dtype=torch.float64)
    seeds[shard.node_id == 0] = 0.5
    chance = access_probability(topology, shard.plan, seeds, Fanout((1, -1)), world.transport)
    return shard.node_id.tolist(), chance.tolist()


def test_chances_of_a_small_graph(tmp_path):
    # 0 reads 1 and 2, 1 reads 3, 2 reads 3: one of 1 and 2 is drawn, then all they read.
    graph = graph_from_edges([1, 2, 3, 3], [0, 0, 1, 2], num_nodes=4)
    write_partition(graph, Partition(np.array([0, 1, 0, 1]), 2), tmp_path / "parts")
    found = {}
    for ids, chances in run_ranks(exact_chances, 2, tmp_path / "parts"):
        found.update(zip(ids, chances, strict=True))
    # The second hop draws for the seed again: all its in-neighbours.
    one = 1 - (1 - 0.25) * (1 - 0.5)
    assert found[0] == [0.5, 0.0]
    np.testing.assert_allclose(found[1], [one, 0.0])
    np.testing.assert_allclose(found[2], [one, 0.0])
    np.testing.assert_allclose(found[3], [1 - (1 - 0.25) ** 2, 0.0])
