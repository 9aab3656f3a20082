"""Vertex-cut partitions: their quality, and the folders that are made of them."""

import doctest
import json

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case

import gnn_dist.edge_partition
from gnn_dist.cli import main
from gnn_dist.edge_partition import EdgePartition, measure_edge_quality
from gnn_dist.errors import PartitionError, ShardFormatError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partitioners import partition_graph
from gnn_dist.shard.format import read_meta, write_partition
from gnn_dist.shard.reader import read_parts


def small():
    """0 -> 1 -> 2 -> 3 -> 0 and 2 -> 1, node 4 alone; CSR order 3->0, 0->1, 2->1, 1->2, 2->3."""
    graph = graph_from_edges(
        [0, 1, 2, 3, 2],
        [1, 2, 3, 0, 1],
        num_nodes=5,
        x=np.arange(10, dtype=np.float32).reshape(5, 2),
        edge_weight=np.array([0.1, 1.2, 2.3, 3.0, 2.1]),
        train_mask=np.array([True, False, True, False, False]),
        name="small",
    )
    # Part 0: 3->0, 0->1 (nodes 0 1 3); part 1: 2->1, 1->2, 2->3 (nodes 1 2 3).
    return graph, EdgePartition([0, 0, 1, 1, 1], [0, 1, 1, 0, 0], 2, method="hand")


def test_quality_by_hand():
    quality = measure_edge_quality(*small())
    assert quality.num_nodes == [3, 2]
    assert quality.num_edges == [2, 3]
    assert quality.num_clones == [4, 3]
    assert quality.num_halo == [1, 1]
    assert quality.num_train == [1, 1]
    assert (quality.num_split, quality.split_fraction) == (2, 0.4)
    assert quality.replication_factor == 7 / 5
    assert quality.balance == {"nodes": 1.2, "edges": 1.2, "clones": 8 / 7, "train": 1.0}
    assert json.loads(json.dumps(quality.to_dict()))["balance"]["nodes"] == 1.2


def test_an_empty_graph():
    quality = measure_edge_quality(graph_from_edges([], []), EdgePartition([], [], 2))
    assert (quality.replication_factor, quality.split_fraction) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("assignment", "root", "message"),
    [
        ([0, 2], [0, 1], "got 2 for node 1"),
        ([0, 1], [0, -1], "got -1 for node 1"),
        ([[0]], [0], "integer vector"),
        ([0], [0.5], "integer vector"),
    ],
)
def test_what_is_no_partition(assignment, root, message):
    with pytest.raises(PartitionError, match=message):
        EdgePartition(assignment, root, 2)


def test_partitions_that_do_not_fit_the_graph():
    graph, partition = small()
    with pytest.raises(PartitionError, match="5 edges and 5 nodes, got 4 and 5"):
        measure_edge_quality(graph, EdgePartition([0] * 4, partition.root, 2))
    # Node 0 has its two edges in part 0; the root of node 4, which has none, may be anywhere.
    with pytest.raises(PartitionError, match="got part 1 for node 0"):
        measure_edge_quality(graph, EdgePartition(partition.assignment, [1, 1, 1, 0, 0], 2))
    measure_edge_quality(graph, EdgePartition(partition.assignment, [0, 1, 1, 0, 1], 2))


def test_the_small_folder_holds_exactly_this(tmp_path):
    graph, partition = small()
    meta = write_partition(graph, partition, tmp_path / "parts")
    # Global ids: 0 = node 0, 1 = node 3, 2 = node 4 | 3 = node 1, 4 = node 2.
    assert meta.node_ptr == (0, 3, 5)
    assert meta.cut == "vertex"
    assert meta.structures[0]["rows"] == "local"
    load = {p.stem: np.load(p) for p in (tmp_path / "parts" / "part-0000").iterdir()}
    assert load["node_id"].tolist() == [0, 3, 4]
    assert load["halo"].tolist() == [3]
    # Rows of 0 (reads 3, local 1), 3, 4 and of the clone of 1 (reads 0).
    assert load["indptr"].tolist() == [0, 1, 1, 1, 2]
    assert load["indices"].tolist() == [1, 0]
    assert load["edge_weight"].tolist() == [3.0, 0.1]
    assert load["x"].tolist() == [[0, 1], [6, 7], [8, 9]]
    load = {p.stem: np.load(p) for p in (tmp_path / "parts" / "part-0001").iterdir()}
    assert load["node_id"].tolist() == [1, 2]
    assert load["halo"].tolist() == [1]
    assert load["indptr"].tolist() == [0, 1, 2, 3]
    assert load["indices"].tolist() == [1, 0, 1]
    assert load["edge_weight"].tolist() == [2.1, 1.2, 2.3]
    assert read_meta(tmp_path / "parts") == meta


def edges_of(arrays, partition):
    """Return (dst, src, edge data) rows by original id."""
    original = np.concatenate([arrays.node_id, partition.nodes.order[arrays.halo]])
    dst = np.repeat(original, np.diff(arrays.indptr))
    data = [values for _, values in sorted(arrays.edge.items())]
    return list(zip(dst, original[arrays.indices], *data, strict=True))


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("method", ["libra", "dbh"])
@pytest.mark.parametrize("name", AWKWARD)
def test_the_union_of_parts_is_the_graph(name, method, together, tmp_path):
    graph = awkward_case(name).graph
    if graph.num_nodes < 4:
        zeros = np.zeros(graph.num_nodes, int)
        partition = EdgePartition(np.zeros(graph.num_edges, int), zeros, 4)
    else:
        partition = partition_graph(graph, 4, method)
    write_partition(graph, partition, tmp_path / "parts")
    shards = [read_parts(tmp_path / "parts", range(p, p + together)) for p in range(0, 4, together)]
    src, dst = graph.edges()
    data = [getattr(graph, n) for n in ("edge_id", "edge_weight") if getattr(graph, n) is not None]
    expected = sorted(zip(dst, src, *data, strict=True))
    assert sorted(row for shard in shards for row in edges_of(shard, partition)) == expected
    ids = np.concatenate([shard.node_id for shard in shards])
    assert ids.tolist() == partition.nodes.order.tolist()
    for field in ("x", "y", "train_mask"):
        got = [shard.x if field == "x" else shard.owned[field] for shard in shards]
        np.testing.assert_array_equal(np.concatenate(got), getattr(graph, field)[ids])
    for shard in shards:
        n = len(shard.node_id)
        assert len(shard.indptr) == n + len(shard.halo) + 1
        in_degree = np.diff(shard.indptr)
        used = np.union1d(shard.indices, np.flatnonzero(in_degree))
        assert (used >= n).sum() == len(shard.halo)  # a halo clone has an edge here


@pytest.mark.parametrize(
    ("array", "values", "message"),
    [
        ("indptr", [0, 1, 1, 1, 1], "indptr must rise from 0 to 2 over 4 nodes"),
        ("indptr", [0, 2, 1, 1, 2], "indptr must not fall"),
        ("indices", [1, 4], r"indices must lie in 0\.\.3"),
    ],
)
@pytest.mark.parametrize("parts", [range(1), range(2)])
def test_arrays_that_do_not_fit_each_other(parts, array, values, message, tmp_path):
    write_partition(*small(), tmp_path / "parts")
    path = tmp_path / "parts" / "part-0000" / f"{array}.npy"
    np.save(path, np.array(values, np.load(path).dtype))
    with pytest.raises(ShardFormatError, match=message):
        read_parts(tmp_path / "parts", parts, verify=False)


def test_the_command_line_makes_and_inspects_one(tmp_path, capsys):
    edges = np.random.default_rng(0).integers(0, 50, (200, 2))
    np.savetxt(tmp_path / "edges.csv", edges, "%d", ",")
    out = str(tmp_path / "parts")
    words = ["--method", "libra", "--parts", "4", "--out", out]
    assert main(["partition", str(tmp_path / "edges.csv"), *words]) == 0
    assert main(["inspect", out]) == 0
    shown = capsys.readouterr().out
    assert "4 parts by libra" in shown
    assert "split nodes" in shown
    assert "part  nodes  edges  halo  clones" in shown
    assert main(["inspect", out, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["cut"] == "vertex"
    assert sum(values["quality"]["num_edges"]) == values["num_edges"]


def losses(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_several_ranks_train_on_one_as_one_rank_does(tmp_path, capfd):
    out, runs = tmp_path / "parts", [tmp_path / "one", tmp_path / "two"]
    words = ["partition", "grid:rows=9,cols=9", "--method", "libra", "--parts", "4"]
    assert main([*words, "--out", str(out)]) == 0
    words = ["train", str(out), "--epochs", "3", "--hidden", "8", "--no-tensorboard"]
    words += ["--model", "gcn", "--inductive", "--batch-norm", "--dropout", "0.5"]
    assert main([*words, "--out", str(runs[0])]) == 0
    assert main([*words, "--out", str(runs[1]), "--ranks", "2"]) == 0
    np.testing.assert_allclose(*map(losses, runs), rtol=1e-5)
    capfd.readouterr()
    assert main(["evaluate", str(runs[1]), "--json"]) == 0  # on one rank
    scores = json.loads(capfd.readouterr().out)
    summary = json.loads((runs[1] / "summary.json").read_text())
    assert scores["test"] == pytest.approx(summary["test_metric_at_best"])


def test_what_needs_whole_nodes_is_refused_at_once(tmp_path, capsys):
    labelled = small()[0].replace(y=np.array([0, 1, 0, 1, 0]), num_classes=2)
    write_partition(labelled, small()[1], tmp_path / "parts")
    words = ["train", str(tmp_path / "parts"), "--model", "gat", "--epochs", "1"]
    assert main([*words, "--ranks", "2"]) == 2
    assert "attention needs all in-edges of a node on one rank" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "parts"), "--prune", "--ranks", "2"]) == 2
    assert "--prune needs all in-edges of a node on one rank" in capsys.readouterr().err
    assert main([*words, "--no-tensorboard", "--out", str(tmp_path / "run")]) == 0  # one rank


def test_doctests():
    assert doctest.testmod(gnn_dist.edge_partition).failed == 0
