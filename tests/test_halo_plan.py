"""The plan of a small graph, id by id, and what it does with wrong input."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from awkward import MOSTLY_SLOW, awkward_case

from gnn_dist.errors import PartitionError, ShardFormatError
from gnn_dist.graph import graph_from_edges
from gnn_dist.halo.load import build_plan, exchange_rows, induced_shard, load_shard
from gnn_dist.partition import Partition, PartitionBook
from gnn_dist.shard import reader
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import RanksFailed, run_ranks

pytestmark = pytest.mark.mpi

# A ring of six nodes in both directions; rank 0 owns 0, 1, rank 1 owns 2, 3, rank 2 owns 4, 5.
RING = graph_from_edges(range(6), [1, 2, 3, 4, 5, 0], symmetrize=True, x=np.eye(6))
THIRDS = Partition([0, 0, 1, 1, 2, 2], 3)


def describe(world, folder):
    shard = load_shard(folder, world)
    plan = shard.plan
    ids = exchange_rows(shard.node_id, plan, world.transport)
    return {
        "global": shard.global_id.tolist(),
        "send": plan.send_index.tolist(),
        "send_ptr": plan.send_ptr,
        "recv_ptr": plan.recv_ptr,
        "halo ids": ids.tolist(),
        "src_id": shard.structure.src_id.tolist(),
        "degree": shard.structure.degree.tolist(),
        "edge_index": shard.edge_index.tolist(),
        "x": shard.x.tolist(),
    }


@pytest.fixture
def ring(tmp_path):
    write_partition(RING, THIRDS, tmp_path / "parts")
    return tmp_path / "parts"


def test_three_ranks_of_a_ring(ring):
    first, second, third = run_ranks(describe, 3, ring)
    assert second["global"] == [2, 3, 1, 4]
    assert second["send"] == [0, 1]  # node 2 to rank 0, node 3 to rank 2
    assert second["send_ptr"] == (0, 1, 1, 2)
    assert second["recv_ptr"] == (0, 1, 1, 2)
    assert second["halo ids"] == [1, 4]
    assert second["edge_index"] == [[2, 1, 0, 3], [0, 0, 1, 1]]
    assert second["degree"] == [3.0] * 4  # two neighbours and its own loop
    assert first["global"] == [0, 1, 2, 5]
    assert third["halo ids"] == [0, 3]
    assert third["x"] == np.eye(6)[4:].tolist()


def columns(world, folder, spill):
    """Return the columns of a shard, and whether the system may drop them from memory."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(reader, "ENTRIES_AT_ONCE", 5)
    try:
        indices = load_shard(folder, world, spill=spill).structure.csr.indices
    finally:
        monkeypatch.undo()
    address, in_file = indices.data_ptr(), False
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        begin, end = (int(word, 16) for word in words[0].split("-"))
        in_file |= begin <= address < end and len(words) > 5 and "/" in words[5]
    return indices.tolist(), in_file


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("world_size", [1, 3])
def test_columns_may_stay_in_files(world_size, tmp_path):
    _, graph, partition = awkward_case("random partition", 3)
    write_partition(graph, partition, tmp_path / "parts")
    kept = run_ranks(columns, world_size, tmp_path / "parts", None)
    mapped = run_ranks(columns, world_size, tmp_path / "parts", tmp_path)
    assert [values for values, _ in kept] == [values for values, _ in mapped]
    assert [in_file for _, in_file in kept] == [False] * world_size
    assert [in_file for _, in_file in mapped] == [True] * world_size
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]  # nothing is left behind


def test_two_ranks_of_three_parts(ring):
    first, second = run_ranks(describe, 2, ring)
    assert first["global"] == [0, 1, 2, 5]
    assert second["global"] == [2, 3, 4, 5, 0, 1]
    assert second["send"] == [0, 3]
    assert second["send_ptr"] == (0, 2, 2)


def test_one_rank_has_no_halo(ring):
    [only] = run_ranks(describe, 1, ring)
    assert only["global"] == [0, 1, 2, 3, 4, 5]
    assert only["send"] == only["halo ids"] == []


def ids_and_values(world, folder):
    """What arrives for a halo node is what its owner holds, for rows of every kind."""
    shard = load_shard(folder, world)
    for rows in (
        shard.node_id,
        shard.x,
        shard.x.half().view(-1, 1, 5).expand(-1, 2, 5),
        shard.x[:, :0],
    ):
        halo = exchange_rows(rows.contiguous(), shard.plan, world.transport)
        assert halo.shape == (shard.num_halo, *rows.shape[1:])
    return shard.structure.src_id.numpy(), shard.global_id.numpy(), shard.structure.degree.numpy()


@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_halo_ids_and_degrees_are_those_of_the_whole_graph(name, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    src, dst = graph.edges()
    weight = np.ones(len(src)) if graph.edge_weight is None else graph.edge_weight
    loop = np.ones(graph.num_nodes)
    if graph.edge_weight is not None:
        loop[src[src == dst]] = weight[src == dst]  # the last copy of a loop stays
    degree = loop + np.bincount(dst, weight * (src != dst), graph.num_nodes)
    for original, global_id, got in run_ranks(ids_and_values, 3, tmp_path / "parts"):
        np.testing.assert_array_equal(partition.global_id[original], global_id)
        np.testing.assert_allclose(got, degree[original])


def too_many_ranks(world, folder):
    with pytest.raises(PartitionError, match=r"3 parts: start fewer ranks .* --parts 4"):
        load_shard(folder, world)


def test_more_ranks_than_parts(ring):
    run_ranks(too_many_ranks, 4, ring)


def wrong_owner(world):
    """Rank 1 asks rank 0 for a node that rank 0 does not have."""
    owned = torch.tensor([[0, 1], [3, 4]][world.rank])
    halo = torch.tensor([[3], [2]][world.rank])
    with pytest.raises(ShardFormatError, match="rank 0 lacks 1 nodes"):
        build_plan(owned, halo, owned, PartitionBook(np.array([0, 3, 5])), world.transport)


def test_a_halo_node_that_nobody_owns_is_refused_everywhere():
    run_ranks(wrong_owner, 2)


def load_with_damage(world, folder):
    load_shard(folder, world)


def test_damage_that_one_rank_sees_stops_all_with_its_name(ring):
    (ring / "part-0001" / "x.npy").unlink()
    with pytest.raises(RanksFailed) as caught:
        run_ranks(load_with_damage, 3, ring)
    assert {f.kind for f in caught.value.failures} == {"ShardFormatError"}
    assert len(caught.value.failures) == 3
    assert "rank 1: " in str(caught.value)
    assert "x.npy is missing" in str(caught.value)


def different_folders(world, folders):
    with pytest.raises(ShardFormatError, match="rank 0 and rank 1 have different ones"):
        load_shard(folders[world.rank], world)


def test_parts_of_two_partitions_do_not_mix(ring, tmp_path):
    write_partition(RING, Partition([0, 1, 1, 1, 2, 2], 3), tmp_path / "other")
    run_ranks(different_folders, 2, [ring, tmp_path / "other"])


def induced(world, folder):
    shard = load_shard(folder, world)
    keep = shard.masks["train_mask"]
    sub = induced_shard(shard, keep, world.transport)
    ids = sub.structure.src_id
    src, dst = sub.edge_index
    return {
        "nodes": sub.node_id.tolist(),
        "edges": list(zip(ids[src].tolist(), ids[dst].tolist(), strict=True)),
        "degree": dict(zip(ids.tolist(), sub.structure.degree.tolist(), strict=True)),
        "halo": sub.num_halo,
        "x": {i: row.tolist() for i, row in zip(sub.node_id.tolist(), sub.x, strict=True)},
        "weight": None if sub.edge_weight is None else sub.edge_weight.tolist(),
        "edge_id": sub.edge_data["edge_id"].tolist() if sub.edge_data else None,
    }


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", MOSTLY_SLOW)
def test_induced_shard_is_the_subgraph_of_kept_nodes(name, world_size, tmp_path):
    _, graph, partition = awkward_case(name, 3)
    write_partition(graph, partition, tmp_path / "parts")
    keep = graph.train_mask
    src, dst = graph.edges()
    inside = keep[src] & keep[dst]
    weight = np.ones(len(src)) if graph.edge_weight is None else graph.edge_weight
    proper = inside & (src != dst)
    degree = np.ones(graph.num_nodes)
    if graph.edge_weight is not None:
        degree[src[src == dst]] = weight[src == dst]
    degree += np.bincount(dst[proper], weight[proper], graph.num_nodes)
    results = run_ranks(induced, world_size, tmp_path / "parts")
    assert sorted(i for r in results for i in r["nodes"]) == np.flatnonzero(keep).tolist()
    edges = sorted(pair for r in results for pair in r["edges"])
    assert edges == sorted(zip(src[inside].tolist(), dst[inside].tolist(), strict=True))
    for result in results:
        for node, value in result["degree"].items():
            assert value == pytest.approx(degree[node])
        assert all(graph.x[node].tolist() == row for node, row in result["x"].items())
    if graph.edge_weight is not None:
        position = {edge: i for i, edge in enumerate(graph.edge_id.tolist())}
        for result in results:
            rows = zip(result["edges"], result["weight"], result["edge_id"], strict=True)
            for (start, end), value, edge_id in rows:
                at = position[edge_id]
                assert (src[at], dst[at], weight[at]) == (start, end, value)
