"""Batches of edges, negatives and what messages go along: the same for any number of ranks."""

import re
import time
from collections import Counter

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case, awkward_cases

import gnn_dist as gd
from gnn_dist.errors import ConfigError
from gnn_dist.halo.load import load_shard
from gnn_dist.nn.models import ModelShape, build_model
from gnn_dist.partition import Partition
from gnn_dist.sampling import edges as edge_batches
from gnn_dist.sampling.directory import NodeDirectory
from gnn_dist.sampling.edges import EdgeBatches, EdgeRows, _takers
from gnn_dist.sampling.find import EdgeFinder
from gnn_dist.sampling.seeds import BatchPlan
from gnn_dist.sampling.supervision import message_shard
from gnn_dist.sampling.topology import topology_of
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import run_ranks

WITH_EDGES = [name for name in AWKWARD if name != "no edges"]
WAYS = [
    {"neg_sampling": gd.NegativeSampling("triplet", 3, "uniform", strict=True), "exclude": "none"},
    {"neg_sampling": gd.NegativeSampling("triplet", 2, "degree"), "exclude": "batch"},
    {"neg_sampling": gd.NegativeSampling("triplet", 2, "in_batch", strict=True, tries=3)},
    {"neg_sampling": None, "exclude": "all", "edge_label_index": "some"},
]
# All ways where they differ most, one elsewhere.
CASES = [(name, way) for name in ("duplicate edges", "star") for way in range(len(WAYS))]
CASES += [(name, i % len(WAYS)) for i, name in enumerate(WITH_EDGES)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Write all awkward cases, in three parts each, by name."""
    made = {}
    for case in awkward_cases(3):
        made[case.name] = tmp_path_factory.mktemp("awkward") / "parts"
        write_partition(case.graph, case.partition, made[case.name])
        write_partition(
            case.graph,
            Partition(np.zeros(case.graph.num_nodes, dtype=np.int64), 1),
            made[case.name].with_name("whole"),
        )
    return made


def edges_of(graph):
    """(src, dst) of each edge."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return list(zip(graph.indices.tolist(), dst.tolist(), strict=True))


def some_edges(graph):
    """Every third edge, and a pair that may be none."""
    return torch.tensor([*edges_of(graph)[::3], (0, graph.num_nodes - 1)]).T


def batches_of(world, folder, way, given):
    """By batch: this rank's edges with negatives, edges that messages go along, and sizes."""
    shard = load_shard(folder, world)
    way = dict(way)
    if "edge_label_index" in way:
        # Rank 0 gives them all.
        way["edge_label_index"] = given if world.rank == 0 else given[:, :0]
    loader = gd.LinkLoader(shard, world, [3, 2], batch_size=11, seed=5, **way)
    edges, messages, sizes = [], [], []
    for number, batch in enumerate(loader):
        ids = batch.blocks[-1].dst_id
        if batch.edge_label_index is None:
            columns = [ids[batch.src_index], ids[batch.dst_pos_index]]
            columns += ids[batch.dst_neg_index].unbind(1)
            columns += [] if batch.neg_mask is None else batch.neg_mask.unbind(1)
        else:
            columns = list(ids[batch.edge_label_index])
        edges += [(number, *row) for row in torch.stack([c.long() for c in columns], 1).tolist()]
        for hop, block in enumerate(reversed(batch.blocks)):
            csr, ids = block.structure.csr, block.structure.src_id
            ends = torch.stack([ids[csr.rows], ids[csr.indices.long()]], 1)
            messages += [(number, hop, *row) for row in ends.tolist()]
        sizes.append((batch.batch_size, batch.size, batch.num_negatives))
        assert batch.blocks[-1].num_dst == len(set(batch.n_id[: batch.blocks[-1].num_dst].tolist()))
    return edges, messages, sizes


def all_batches(world, folders, given):
    return [batches_of(world, folders[name], WAYS[way], given[name]) for name, way in CASES]


@pytest.fixture(scope="module")
def given():
    return {name: some_edges(awkward_case(name, 3).graph) for name in WITH_EDGES}


@pytest.fixture(scope="module")
def one_rank(folders, given):
    """On another partition."""
    whole = {name: folder.with_name("whole") for name, folder in folders.items()}
    [found] = run_ranks(all_batches, 1, whole, given, timeout_s=60.0)
    return found


def grouped(messages):
    """By batch, hop and destination: the sources, which every rank that has it must agree on."""
    groups = {}
    for of_rank in messages:
        here = {}
        for number, hop, dst, src in of_rank:
            here.setdefault((number, hop, dst), []).append(src)
        for key, sources in here.items():
            groups.setdefault(key, set()).add(tuple(sources))
    assert all(len(group) == 1 for group in groups.values())
    return groups


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_batches_are_the_same_for_any_number_of_ranks(world_size, folders, given, one_rank):
    found = run_ranks(all_batches, world_size, folders, given, timeout_s=60.0)
    for name, (edges, messages, sizes), *ranks in zip(CASES, one_rank, *found, strict=True):
        assert Counter(row for rank in ranks for row in rank[0]) == Counter(edges), name
        assert grouped([rank[1] for rank in ranks]) == grouped([messages]), name
        for (_, size, negatives), *shares in zip(sizes, *(rank[2] for rank in ranks), strict=True):
            own = [share[0] for share in shares]
            assert sum(own) == size
            assert max(own) - min(own) <= 1
            assert {share[1:] for share in shares} == {(size, negatives)}


def test_each_edge_is_in_one_batch_and_not_a_message_there(one_rank):
    for (name, way), (edges, messages, sizes) in zip(CASES, one_rank, strict=True):
        graph = awkward_case(name, 3).graph
        wanted = edges_of(graph) if way < 3 else some_edges(graph).T.tolist()
        assert Counter(tuple(row[1:3]) for row in edges) == Counter(map(tuple, wanted)), name
        assert [size for _, size, _ in sizes[:-1]] == [11] * (len(sizes) - 1)
        learned = {(number, *pair) for number, *pair in (row[:3] for row in edges)}
        if way == 3:
            learned = {(n, *pair) for n in range(len(sizes)) for _, *pair in learned}
        along = {(number, src, dst) for number, _, dst, src in messages}
        along |= {(number, dst, src) for number, _, dst, src in messages}
        assert way == 0 or not along & learned, name


def test_without_exclusion_messages_go_along_the_batch(one_rank):
    """So that the test above can fail."""
    edges, messages, _ = one_rank[CASES.index(("star", 0))]
    learned = {tuple(row[:3]) for row in edges}
    assert learned & {(number, src, dst) for number, _, dst, src in messages}


def test_strict_negatives_are_no_edges(one_rank):
    seen = Counter()
    for (name, way), (edges, _, sizes) in zip(CASES, one_rank, strict=True):
        amount = {0: 3, 2: 2}.get(way)
        if amount is None:
            continue
        graph = set(edges_of(awkward_case(name, 3).graph))
        for _, src, _, *rest in edges:
            for dst, is_none in zip(rest[:amount], rest[amount:], strict=True):
                assert ((src, dst) not in graph) == bool(is_none)
                seen[is_none] += 1
        assert sum(size[2] for size in sizes) == sum(sum(row[3 + amount :]) for row in edges)
    assert seen[1] > 10 * seen[0] > 0  # the star's hub has no negatives


def test_in_batch_negatives_are_destinations_of_the_batch(one_rank):
    for (_, way), (edges, _, _) in zip(CASES, one_rank, strict=True):
        if way == 2:
            batches = {}
            for number, _, dst, *_ in edges:
                batches.setdefault(number, set()).add(dst)
            for number, _, _, first, second, *_ in edges:
                assert len(batches[number]) == 1 or {first, second} <= batches[number]


def test_epochs_differ_unless_they_are_not_to(folders):
    world = gd.World.single()
    shard = load_shard(folders["directed"], world)
    for shuffle in (True, False):
        loader = gd.LinkLoader(shard, world, [2], batch_size=20, shuffle=shuffle)
        first, second = ([b.input_id.tolist() for b in loader] for _ in range(2))
        assert (first == second) != shuffle
        assert sorted(i for batch in first for i in batch) == list(range(shard.num_edges))


def test_fields_are_those_of_pyg(folders):
    world = gd.World.single()
    shard = load_shard(folders["directed"], world)
    [batch] = gd.LinkLoader(shard, world, [2], batch_size=999, neg_sampling=("binary", 2))
    k = shard.num_edges
    assert batch.edge_label.tolist() == [1.0] * k + [0.0] * 2 * k
    ids = batch.n_id[batch.edge_label_index]
    assert torch.equal(ids[0, k:], ids[0, :k].repeat_interleave(2))
    assert torch.equal(ids[:, :k], shard.node_id[shard.edge_index[:, batch.input_id]])
    label = torch.arange(k)
    loader = gd.LinkLoader(shard, world, [2], batch_size=9, edge_label=label, neg_sampling=None)
    for batch in loader:
        assert torch.equal(batch.edge_label, batch.input_id)
        assert batch.x.dtype == torch.float64
    [batch] = gd.LinkLoader(shard, world, [2], batch_size=999, edge_label=label)
    assert torch.equal(batch.edge_label[:k], 1 + batch.input_id)
    assert not batch.edge_label[k:].any()
    assert not hasattr(batch, "y")


def test_a_model_of_pyg_runs_on_a_batch(folders):
    from torch_geometric.nn import GraphSAGE

    world = gd.World.single()
    shard = load_shard(folders["duplicate edges"], world)
    ours = build_model("sage", ModelShape(5, 6, 4)).double()
    theirs = GraphSAGE(5, 6, 2, 4).double()
    theirs.load_state_dict(ours.state_dict())
    # Of whole neighbourhoods the same is drawn at every depth.
    for batch in gd.LinkLoader(shard, world, [-1, -1], batch_size=30):
        graph = batch.subgraph
        rows = theirs(batch.x[graph.rows], graph.edge_index)[batch.edge_label_index]
        expected = ours(batch.x, batch.blocks)[batch.edge_label_index]
        torch.testing.assert_close(rows, expected)


def oracle(world, folder):
    """Largest difference of a batch's rows from those of the graph without its edges."""
    shard = load_shard(folder, world)
    torch.manual_seed(0)
    encoder = build_model("gin", ModelShape(5, 6, 4)).double()
    everywhere = torch.stack([shard.structure.src_id[shard.edge_index[i]] for i in (0, 1)])
    worst = 0.0
    for batch in gd.LinkLoader(shard, world, [-1, -1], batch_size=9, neg_sampling=None):
        mine = batch.blocks[-1].dst_id[batch.edge_label_index].T.tolist()
        learned = {tuple(e) for rank in world.transport.all_gather_object(mine) for e in rank}
        keep = [not {(s, d), (d, s)} & learned for s, d in zip(*everywhere.tolist(), strict=True)]
        keep = torch.tensor(keep, dtype=torch.bool)
        whole = gd.node_rows(encoder, message_shard(shard, keep, world.transport), world)
        by_id = {}
        for ids, rows in world.transport.all_gather_object((shard.node_id, whole)):
            by_id.update(zip(ids.tolist(), rows, strict=True))
        rows = encoder(batch.x, batch.blocks).detach()
        for node, row in zip(batch.blocks[-1].dst_id.tolist(), rows, strict=True):
            worst = max(worst, float((row - by_id[node]).abs().max()))
    return worst


@pytest.mark.parametrize("world_size", [1, 2])
def test_rows_are_those_of_the_graph_without_the_batch(world_size, folders):
    """Sums over whole neighbourhoods: what is left out is not made up for by what stays."""
    assert max(run_ranks(oracle, world_size, folders["duplicate edges"])) < 1e-10


def structures(world, folders):
    """Of each case, what directory and finder say, to be compared with the graph."""
    found = []
    for name in AWKWARD:
        shard = load_shard(folders[name], world)
        topology = topology_of(shard, world.transport)
        directory = NodeDirectory(topology, world.transport)
        number = directory.numbers(torch.arange(-1, directory.num_nodes + 1))
        finder = EdgeFinder(topology, shard.structure.src_id, world.transport)
        n, real = directory.num_nodes, number[1:-1]
        exists = finder.exist(real.repeat_interleave(n), torch.arange(n).repeat(n)).view(n, n)
        degree = torch.zeros(n)
        if directory.num_edges:
            grid = (torch.arange(directory.num_edges) + 0.5) / directory.num_edges
            degree = torch.bincount(directory.draw(grid.double(), by_degree=True), minlength=n)
        alike = directory.draw((torch.arange(n) + 0.5).double() / n, by_degree=False)
        found.append((number.tolist(), exists.numpy(), degree[real].tolist(), alike.tolist()))
    return found


@pytest.mark.parametrize("world_size", [1, 3])
def test_nodes_and_edges_of_all_ranks_are_found(world_size, folders):
    for found in run_ranks(structures, world_size, folders):
        for name, (number, exists, degree, alike) in zip(AWKWARD, found, strict=True):
            graph = awkward_case(name, 3).graph
            dense = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
            for src, dst in edges_of(graph):
                dense[dst, src] = True
            assert number[0] == number[-1] == -1
            assert sorted(number[1:-1]) == list(range(graph.num_nodes)), name
            assert alike == number[1:-1]
            np.testing.assert_array_equal(exists, dense, err_msg=name)
            np.testing.assert_array_equal(degree, np.diff(graph.indptr), err_msg=name)


def splits(world, folders):
    found = []
    for name in AWKWARD:
        shard = load_shard(folders[name], world)
        split = gd.split_edges(shard, world, val=0.25, test=0.25, seed=3)
        structure = split.shard.structure
        parts = [part.T.tolist() for part in (split.train, split.val, split.test)]
        degree = dict(zip(structure.src_id.tolist(), structure.degree.tolist(), strict=True))
        messages = structure.src_id[torch.stack([structure.csr.indices.long(), structure.csr.rows])]
        assert messages.T.tolist() == parts[0]
        assert all(len(v) == len(messages.T) for v in split.shard.edge_data.values())
        counts = dict(zip(structure.src_id.tolist(), structure.num_in_edges.tolist(), strict=True))
        found.append((parts, degree, counts))
    return found


def test_splits_have_no_edge_in_common_in_either_direction(folders):
    held_out = 0
    one, three = (run_ranks(splits, size, folders) for size in (1, 3))
    for case in range(len(AWKWARD)):
        for part in range(3):
            alone = sorted(one[0][case][0][part])
            assert alone == sorted(e for rank in three for e in rank[case][0][part])
    for name, *ranks in zip(AWKWARD, *three, strict=True):
        train, val, test = (
            Counter(tuple(edge) for rank in ranks for edge in rank[0][i]) for i in range(3)
        )
        graph = awkward_case(name, 3).graph
        assert train + val + test == Counter(edges_of(graph)), name
        both = [set(part) | {(d, s) for s, d in part} for part in (train, val, test)]
        assert sum(map(len, both)) == len(both[0] | both[1] | both[2]), name
        held_out += len(val) + len(test)
        for _, degree, counts in ranks:
            for node in degree:
                assert counts[node] == sum(n for (_, d), n in train.items() if d == node)
                if graph.edge_weight is None:
                    others = sum(n for (s, d), n in train.items() if d == node != s)
                    assert degree[node] == others + 1
    assert held_out > 100


def test_surplus_goes_where_something_is_missing():
    counts = torch.tensor([[5, 0, 5], [0, 0, 5], [1, 7, 0], [0, 0, 2]])
    taken = torch.zeros_like(counts)
    for rank in range(4):
        batch = torch.arange(3).repeat_interleave(counts[rank])
        taken.index_put_((_takers(counts, rank), batch), torch.tensor(1), accumulate=True)
    assert taken.tolist() == [[2, 2, 3], [2, 2, 3], [1, 2, 3], [1, 1, 3]]


def test_many_batches_are_dealt_out_in_several_rounds():
    ids = torch.arange(1000)[:, None].expand(-1, 5).contiguous()
    world = gd.World.single()
    batches = EdgeBatches(EdgeRows(ids), BatchPlan(3, drop_last=True), world.transport)
    shares = list(batches.epoch(0))
    assert [len(share.edges) for share in shares] == [3] * 333
    assert len(torch.cat([share.edges.position for share in shares]).unique()) == 999


BAD = [
    ({"batch_size": 0}, "batch_size must be at least 1"),
    ({"exclude": "some"}, "exclude must be none or batch or all"),
    ({"neg_sampling": "many"}, "mode of negatives must be binary or triplet"),
    ({"neg_sampling": ("triplet", 0)}, "amount and tries of negatives must be at least 1"),
    ({"batch_size": 9999, "drop_last": True}, "too few for a batch of 9999"),
    ({"edge_label": torch.ones(2)}, "edge_label must have a row for each of"),
    ({"edge_label_index": torch.ones(3, 2).long()}, r"edge_label_index must be int64 \(2, k\)"),
    ({"edge_label_index": torch.ones(2, 2)}, r"edge_label_index must be int64 \(2, k\)"),
    ({"edge_label_index": torch.tensor([[0], [99]])}, "ids of nodes, got 99"),
    ({"edge_label_index": torch.tensor([[-1], [0]])}, "ids of nodes, got -1"),
]


def refused(world, folders):
    """Only rank 1 has what is wrong, where ranks may differ; messages on this rank."""
    heard = []
    shard = load_shard(folders["directed"], world)
    for options, _ in BAD:
        mine = dict(options)
        if world.rank != 1 and "edge_label_index" in mine:
            mine["edge_label_index"] = torch.tensor([[0], [1]])
        if world.rank != 1 and "edge_label" in mine:
            mine["edge_label"] = torch.zeros(shard.num_edges)
        with pytest.raises(ConfigError) as error:
            gd.LinkLoader(shard, world, [2], **{"batch_size": 4, "neg_sampling": None, **mine})
        heard.append(str(error.value))
    empty = load_shard(folders["no edges"], world)
    with pytest.raises(ConfigError, match="no rank has edges"):
        gd.LinkLoader(empty, world, [2], batch_size=4)
    pairs = torch.tensor([[0, 1], [1, 2]])[:, : 2 if world.rank == 0 else 0]
    with pytest.raises(ConfigError, match="by degree in a graph without edges"):
        gd.LinkLoader(
            empty,
            world,
            [2],
            batch_size=4,
            edge_label_index=pairs,
            neg_sampling=gd.NegativeSampling(method="degree"),
        )
    # Without any edge for messages there are batches all the same.
    [batch] = gd.LinkLoader(empty, world, [2], batch_size=4, edge_label_index=pairs)
    assert (batch.size, batch.num_negatives) == (2, 2)
    return heard


def test_what_cannot_be_is_refused_on_every_rank(folders):
    for heard in run_ranks(refused, 2, folders):
        for message, (options, expected) in zip(heard, BAD, strict=True):
            assert re.search(expected, message), (options, message)


def leaving_early(world, folder):
    """Leave the loop where some threads have begun the next round of dealing out, others not."""
    shard = load_shard(folder, world)
    loader = gd.LinkLoader(shard, world, [2], batch_size=4, seed=1, bulk=1, ahead=1)
    edge_batches.BATCHES_AT_ONCE = 3  # in this process of a rank alone
    if world.rank == 1:
        take = loader._store.take
        loader._store.take = lambda *args: (time.sleep(0.02), take(*args))[1]
    seen = []
    for stop in (1, 2, 3):
        for number, batch in enumerate(loader):
            seen.append(batch.step)
            if number == stop:
                break
    return seen


def test_all_ranks_may_leave_an_epoch_early(folders):
    graph = awkward_case("random partition", 3).graph
    batches = -(-graph.num_edges // 4)
    expected = [epoch * batches + i for epoch, n in enumerate((2, 3, 4)) for i in range(n)]
    assert run_ranks(leaving_early, 3, folders["random partition"]) == [expected] * 3
