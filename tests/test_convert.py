"""Partition folders of other systems: everything arrives, and their own readers agree."""

import hashlib
import importlib.util
import json
import warnings

import numpy as np
import pytest
import torch
from awkward import AWKWARD, awkward_case

import gnn_dist as gd
from gnn_dist.cli import main
from gnn_dist.convert import convert_folder, folder_format
from gnn_dist.convert.dgl_folder import original_ids_of, read_dgl
from gnn_dist.convert.own_folder import read_own
from gnn_dist.convert.pyg_folder import read_pyg
from gnn_dist.errors import ConfigError, ShardFormatError
from gnn_dist.graph import EDGE_NAMES, MASK_NAMES, CSRFeatures
from gnn_dist.shard.format import read_meta
from gnn_dist.shard.reader import read_parts

HAS_DGL = importlib.util.find_spec("dgl") is not None
needs_dgl = [
    pytest.mark.skipif(not HAS_DGL, reason="DGL is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of DGL, which is older than its dependencies
]
FOREIGN = ["pyg", pytest.param("dgl", marks=needs_dgl)]
READERS = {"pyg": read_pyg, "dgl": lambda folder: read_dgl(next(folder.glob("*.json")))}


def write_own(graph, partition, out):
    gd.write_partition(graph, partition, out)
    return out


def assert_same_graph(one, other):
    assert (one.name, one.num_classes) == (other.name, other.num_classes)
    for name in ("indptr", "indices", "x", "y", *MASK_NAMES, *EDGE_NAMES):
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, CSRFeatures) and not isinstance(right, CSRFeatures):
            left = left.to_dense()
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype == right.dtype, name
            assert np.array_equal(left, right), name


def assert_same_folder(one, other):
    """Compare all arrays of all parts; a folder has the same of them, by name and dtype."""
    metas = read_meta(one), read_meta(other)
    for key in ("dataset", "fingerprint", "num_classes", "node_ptr", "quality", "partitioner"):
        assert getattr(metas[0], key) == getattr(metas[1], key), key
    for part in range(metas[0].num_parts):
        rows = [meta.arrays_of(part) for meta in metas]
        assert rows[0].keys() == rows[1].keys()
        for name, row in rows[0].items():
            assert row == rows[1][name]


def rich_graph(seed=0, **changes):
    """A directed multigraph with every field, ids of edges in no order."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, 40, (2, 150))
    fields = {
        "x": rng.standard_normal((40, 5), np.float32),
        "y": rng.integers(-1, 4, 40),
        "num_classes": 7,
        "edge_weight": rng.random(150),
        "edge_attr": rng.random((150, 2), np.float32),
        "edge_type": rng.integers(0, 3, 150).astype(np.int16),
        "name": "rich graph",
    }
    fields.update(changes)
    if fields["y"] is not None and fields["y"].ndim == 1:
        mask = (fields["y"] >= 0)[:, None] & (rng.random((40, 2)) < 0.5)
        fields.update(train_mask=mask, val_mask=~mask & (fields["y"] >= 0)[:, None])
    return gd.graph_from_edges(src, dst, num_nodes=40, **fields)


@pytest.mark.parametrize("to", FOREIGN)
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("num_parts", [1, 3])
def test_the_way_there_and_back_changes_nothing(tmp_path, name, num_parts, to):
    _, graph, partition = awkward_case(name, num_parts)
    own = write_own(graph, partition, tmp_path / "own")
    convert_folder(own, to, tmp_path / "there")
    assert folder_format(tmp_path / "there") == to
    convert_folder(tmp_path / "there", "gnn-dist", tmp_path / "back")
    assert_same_folder(own, tmp_path / "back")
    assert_same_graph(read_own(tmp_path / "back").graph(), graph)


@pytest.mark.parametrize("to", FOREIGN)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"x": None},
        {"y": None},
        {"y": np.random.default_rng(1).random((40, 3)) < 0.5, "num_classes": 3},
        {"edge_weight": None, "edge_attr": None, "edge_type": None},
        {"edge_id": np.arange(150) // 2},
    ],
    ids=["everything", "no x", "no y", "several labels", "no edge data", "ids twice"],
)
def test_every_field_survives(tmp_path, changes, to):
    graph = rich_graph(**changes)
    partition = gd.Partition(np.arange(40) % 3, 4, "mine", {"seed": 3}, ("a note",))
    own = write_own(graph, partition, tmp_path / "own")
    convert_folder(own, to, tmp_path / "there")
    convert_folder(tmp_path / "there", "gnn-dist", tmp_path / "back")
    assert_same_folder(own, tmp_path / "back")
    assert_same_graph(read_own(tmp_path / "back").graph(), graph)


@pytest.mark.parametrize("to", FOREIGN)
@pytest.mark.parametrize("values", [None, np.array([1.0, 2, 3])], ids=["ones", "values"])
def test_sparse_features_are_full_there_and_sparse_again_here(tmp_path, to, values):
    x = CSRFeatures(np.array([0, 2, 2, 3]), np.array([0, 3, 1]), values, 4)
    graph = gd.graph_from_edges([0, 1], [1, 2], num_nodes=3, x=x)
    own = write_own(graph, gd.Partition(np.array([1, 0, 1]), 3), tmp_path / "own")
    convert_folder(own, to, tmp_path / "there")
    held = READERS[to](tmp_path / "there").read(1).node["x"]
    assert np.array_equal(held, x.to_dense()[[0, 2]])
    convert_folder(tmp_path / "there", "gnn-dist", tmp_path / "back")
    assert_same_folder(own, tmp_path / "back")


@pytest.mark.parametrize("method", ["contiguous", "metis", "random"])
@pytest.mark.parametrize("to", FOREIGN)
def test_the_replication_factor_is_that_of_the_other_folder(tmp_path, to, method):
    graph = rich_graph()
    partition = gd.partition_graph(graph, 4, method)
    own = write_own(graph, partition, tmp_path / "own")
    convert_folder(own, to, tmp_path / "there")
    held = edges = 0
    for part in READERS[to](tmp_path / "there").parts():
        held += len(np.union1d(part.node_id, part.src))
        edges += len(part.src)
        assert np.isin(part.dst, part.node_id).all()
    assert held / graph.num_nodes == read_meta(own).quality["replication_factor"]
    assert edges == graph.num_edges


def test_pyg_reads_what_we_write(tmp_path):
    from torch_geometric.distributed import LocalFeatureStore, LocalGraphStore

    graph = rich_graph()
    assignment = np.arange(40) % 3
    own = write_own(graph, gd.Partition(assignment, 4), tmp_path / "own")
    convert_folder(own, "pyg", tmp_path / "pyg")
    src_of, dst_of = np.empty(150, int), np.empty(150, int)
    src, dst = graph.edges()
    src_of[graph.edge_id], dst_of[graph.edge_id] = src, dst
    seen = 0
    for part in range(4):
        store = LocalGraphStore.from_partition(str(tmp_path / "pyg"), part)
        assert (store.num_partitions, store.partition_idx) == (4, part)
        assert store.node_pb.tolist() == assignment.tolist()
        (attr,) = store.get_all_edge_attrs()
        row, col = store.get_edge_index(attr)
        number = store.get_edge_id(attr)
        assert (np.diff(col.numpy()) >= 0).all()
        assert np.array_equal(src_of[number], row)
        assert np.array_equal(dst_of[number], col)
        assert (store.edge_pb[number] == part).all()
        assert (store.node_pb[col] == part).all()
        seen += len(row)
        feats = LocalFeatureStore.from_partition(str(tmp_path / "pyg"), part)
        owned = np.flatnonzero(assignment == part)
        if not len(owned):
            assert not feats.get_all_tensor_attrs()
            continue
        assert feats.get_global_id(group_name=None).tolist() == owned.tolist()
        for name in ("x", "y", "train_mask"):
            values = feats.get_tensor(group_name=None, attr_name=name)
            assert np.array_equal(values, getattr(graph, name)[owned])
            assert values.numpy().dtype == getattr(graph, name).dtype
        weights = feats.get_tensor(group_name=(None, None), attr_name="edge_weight")
        rank = np.argsort(graph.edge_id)
        assert np.array_equal(weights, graph.edge_weight[rank[number]])
    assert seen == graph.num_edges
    labels = torch.load(tmp_path / "pyg" / "label.pt", weights_only=True)
    assert np.array_equal(labels, graph.y)


@pytest.fixture
def pyg_partition(tmp_path, monkeypatch):
    """Let PyG partition a graph, its parts drawn, since its own METIS needs another library."""
    from torch_geometric.data import Data
    from torch_geometric.distributed import Partitioner
    from torch_geometric.loader import ClusterData

    def make(**fields):
        rng = np.random.default_rng(3)
        parts = torch.from_numpy(rng.permutation(np.arange(30) % 3))
        edge_index = torch.from_numpy(rng.integers(0, 30, (2, 120)))
        monkeypatch.setattr(ClusterData, "_metis", lambda *_: parts)
        data = Data(edge_index=edge_index, num_nodes=30, **fields)
        folder = tmp_path / "toy-partitions"
        Partitioner(data, 3, str(folder)).generate_partition()
        return data, parts.numpy(), folder

    return make


def test_we_read_what_pyg_writes(tmp_path, pyg_partition):
    x, attr = torch.randn(30, 4), torch.randn(120, 2)
    data, parts, folder = pyg_partition(x=x, edge_attr=attr)
    read = read_pyg(folder)
    assert np.array_equal(read.partition.assignment, parts)
    want = gd.graph_from_edges(
        *data.edge_index.numpy(), num_nodes=30, x=x.numpy(), edge_attr=attr.numpy()
    )
    got = read.graph()
    assert_same_graph(got.replace(name="graph"), want)
    convert_folder(folder, "gnn-dist", tmp_path / "own")
    assert read_meta(tmp_path / "own").partitioner["method"] == "pyg"


def test_labels_and_splits_beside_pygs_folder_are_found(tmp_path, pyg_partition):
    _, _, folder = pyg_partition(x=torch.randn(30, 4))
    y = torch.arange(30) % 3
    (tmp_path / "toy-label").mkdir()
    torch.save(y, tmp_path / "toy-label" / "label.pt")
    for name, ids in (("train", [[3, 1], [7]]), ("val", [[4], []]), ("test", [[0], [29]])):
        (tmp_path / f"toy-{name}-partitions").mkdir()
        for part, some in enumerate(ids):
            path = tmp_path / f"toy-{name}-partitions" / f"partition{part}.pt"
            torch.save(torch.tensor(some, dtype=torch.int64), path)
    graph = read_pyg(folder).graph()
    assert np.array_equal(graph.y, y)
    assert np.flatnonzero(graph.train_mask).tolist() == [1, 3, 7]
    assert np.flatnonzero(graph.test_mask).tolist() == [0, 29]


@pytest.fixture
def dgl():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("dgl")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_parts", [1, 3])
def test_dgl_reads_what_we_write(tmp_path, dgl, num_parts, monkeypatch):
    monkeypatch.setenv("DGL_DIST_DEBUG", "1")  # DGL checks the ids of each part
    graph = rich_graph()
    partition = gd.Partition(np.arange(40) * 7 % num_parts, num_parts)
    own = write_own(graph, partition, tmp_path / "own")
    convert_folder(own, "dgl", tmp_path / "dgl")
    rank, degrees = np.argsort(graph.edge_id), []
    for part in range(num_parts):
        config = str(tmp_path / "dgl" / "rich_graph.json")
        loaded, node, edge, book, name, *_ = dgl.distributed.load_partition(config, part)
        inner = loaded.ndata["inner_node"].bool()
        owned = partition.order[loaded.ndata["_ID"][inner]]
        assert np.array_equal(owned, np.flatnonzero(partition.assignment == part))
        assert np.array_equal(loaded.ndata["orig_id"], partition.order[loaded.ndata["_ID"]])
        assert np.array_equal(book.nid2partid(loaded.ndata["_ID"]), loaded.ndata["part_id"])
        assert np.array_equal(book.partid2nids(part), loaded.ndata["_ID"][inner])
        assert np.array_equal(book.partid2eids(part), loaded.edata["_ID"])
        assert loaded.num_nodes() == len(owned) + len(read_parts(own, range(part, part + 1)).halo)
        src, dst = (loaded.ndata["orig_id"][ends].numpy() for ends in loaded.edges(order="eid"))
        want_src, want_dst = (ends[rank] for ends in graph.edges())
        number = loaded.edata["orig_id"]
        assert np.array_equal(src, want_src[number])
        assert np.array_equal(dst, want_dst[number])
        assert np.array_equal(node["_N/feat"], graph.x[owned])
        assert np.array_equal(node["_N/label"], graph.y[owned])
        assert np.array_equal(node["_N/train_mask"].bool(), graph.train_mask[owned])
        assert np.array_equal(edge["_N:_E:_N/weight"], graph.edge_weight[rank[number]])
        assert name == "rich_graph"
        degrees.append((owned, loaded.in_degrees()[inner]))
    assert all(np.array_equal(graph.in_degree[owned], found) for owned, found in degrees)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("num_parts", "hops"), [(3, 1), (3, 2), (1, 1)])
def test_we_read_what_dgl_writes(tmp_path, dgl, capfd, num_parts, hops):
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 30, (2, 100))
    theirs = dgl.graph((torch.from_numpy(src), torch.from_numpy(dst)), num_nodes=30)
    theirs.ndata["feat"] = torch.from_numpy(rng.random((30, 3)))
    theirs.ndata["label"] = torch.arange(30) % 4
    theirs.ndata["train_mask"] = torch.from_numpy(rng.random(30) < 0.5)
    theirs.ndata["mine"] = torch.zeros(30)
    theirs.edata["weight"] = torch.from_numpy(rng.random(100))
    node_ids, _ = dgl.distributed.partition_graph(
        theirs, "toy", num_parts, str(tmp_path / "dgl"), hops, "random", return_mapping=True
    )
    capfd.readouterr()
    torch.save(node_ids, tmp_path / "ids.pt")
    out, ids = tmp_path / "own", tmp_path / "ids.pt"
    convert_folder(tmp_path / "dgl", "gnn-dist", out, original_ids=ids)
    got, want = read_own(out).graph(), gd.graph_from_dgl(theirs)
    # Edges have lost their ids on DGL's way, and copies of an edge their order.
    assert np.array_equal(got.indptr, want.indptr)
    assert np.array_equal(got.indices, want.indices)
    for name in ("x", "y", "train_mask"):
        assert np.array_equal(getattr(got, name), getattr(want, name))
        assert getattr(got, name).dtype == getattr(want, name).dtype
    pairs = [np.lexsort((g.edge_weight, *g.edges())) for g in (got, want)]
    assert np.array_equal(got.edge_weight[pairs[0]], want.edge_weight[pairs[1]])
    assert got.edge_id is None
    assert read_meta(out).partitioner["method"] == "random"
    # Without the mapping the ids are DGL's own.
    relabelled = read_dgl(tmp_path / "dgl" / "toy.json").graph()
    assert np.array_equal(relabelled.y, want.y[node_ids])


@pytest.mark.filterwarnings("ignore")
def test_between_dgl_and_pyg(tmp_path, dgl):
    graph = rich_graph()
    own = write_own(graph, gd.Partition(np.arange(40) % 3, 3), tmp_path / "own")
    convert_folder(own, "dgl", tmp_path / "dgl")
    convert_folder(tmp_path / "dgl" / "rich_graph.json", "pyg", tmp_path / "pyg")
    convert_folder(tmp_path / "pyg", "dgl", tmp_path / "dgl2")
    convert_folder(tmp_path / "dgl2", "gnn-dist", tmp_path / "back")
    assert_same_folder(own, tmp_path / "back")


@pytest.mark.skipif(HAS_DGL, reason="DGL is installed")
def test_without_dgl_the_message_says_how_to_get_it(tmp_path):
    own = write_own(rich_graph(), gd.Partition(np.zeros(40, int), 1), tmp_path / "own")
    with pytest.raises(ConfigError, match=r"pip install 'gnn-dist\[dgl\]'"):
        convert_folder(own, "dgl", tmp_path / "dgl")
    assert not (tmp_path / "dgl").exists()


@pytest.fixture
def pyg_folder(tmp_path):
    own = write_own(rich_graph(), gd.Partition(np.arange(40) % 2, 2), tmp_path / "own")
    convert_folder(own, "pyg", tmp_path / "pyg")
    return tmp_path / "pyg"


def change(path, **changes):
    values = torch.load(path, weights_only=True)
    torch.save({**values, **changes}, path)


def test_lost_edges_are_noticed(tmp_path, pyg_folder):
    graph = torch.load(pyg_folder / "part_0" / "graph.pt", weights_only=True)
    fewer = {key: graph[key][1:] for key in ("row", "col", "edge_id")}
    change(pyg_folder / "part_0" / "graph.pt", **fewer)
    torch.save({}, pyg_folder / "part_0" / "edge_feats.pt")
    torch.save({}, pyg_folder / "part_1" / "edge_feats.pt")
    with pytest.raises(ShardFormatError, match="the graph's 150 edges together, got 149"):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_edges_of_another_part_are_noticed(tmp_path, pyg_folder):
    graph = torch.load(pyg_folder / "part_0" / "graph.pt", weights_only=True)
    change(pyg_folder / "part_0" / "graph.pt", col=graph["col"] + 1)
    with pytest.raises(ShardFormatError, match="in-edges of its own nodes only"):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")


def test_nodes_of_another_part_are_noticed(tmp_path, pyg_folder):
    parts = torch.load(pyg_folder / "node_map.pt", weights_only=True)
    torch.save(1 - parts, pyg_folder / "node_map.pt")
    with pytest.raises(ShardFormatError, match="part 0 must hold the 20 nodes"):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")


def test_data_that_some_parts_lack_are_noticed(tmp_path, pyg_folder):
    torch.save({}, pyg_folder / "part_1" / "edge_feats.pt")
    with pytest.raises(ShardFormatError, match="all parts must hold the same data"):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")


@pytest.mark.parametrize("file", ["node_map.pt", "part_1/graph.pt", "part_1/node_feats.pt"])
@pytest.mark.parametrize("harm", ["missing", "truncated"])
def test_damaged_files_are_named(tmp_path, pyg_folder, file, harm):
    path = pyg_folder / file
    content = path.read_bytes()
    path.unlink()
    if harm == "truncated":
        path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ShardFormatError, match=file):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_parts", 2**40),
        ("num_parts", 0),
        ("num_parts", "2"),
        ("gnn_dist", 3),
        ("gnn_dist", {"notes": 1}),
        ("gnn_dist", {"num_classes": "x"}),
        ("gnn_dist", {"options": []}),
    ],
)
def test_odd_metadata_is_named(pyg_folder, key, value):
    path = pyg_folder / "META.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ShardFormatError, match=r"META\.json is .*damaged"):
        read_pyg(pyg_folder)


def test_arrays_that_do_not_fit_each_other_are_named(pyg_folder):
    path = pyg_folder / "part_0/graph.pt"
    graph = torch.load(path)
    torch.save({**graph, "row": graph["row"][:-1]}, path)
    with pytest.raises(ShardFormatError, match="part_0 is damaged"):
        list(read_pyg(pyg_folder).parts())


def test_nodes_outside_the_graph_are_named(tmp_path):
    graph, partition = awkward_case("star", 2)[1:]
    gd.write_partition(graph, partition, tmp_path / "p")
    path, meta = tmp_path / "p/part-0000/node_id.npy", tmp_path / "p/meta.json"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    np.save(path, np.load(path) + 1000)
    after = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ShardFormatError, match=r"node_id\.npy is damaged"):
        read_own(tmp_path / "p")
    meta.write_text(meta.read_text().replace(before, after))
    with pytest.raises(ShardFormatError, match=r"node_id\.npy must hold ids in 0\.\.24"):
        read_own(tmp_path / "p")


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    graph, partition = awkward_case("star", 2)[1:]
    gd.write_partition(graph, partition, tmp_path / "p")

    def full(*args):
        raise RuntimeError("unexpected pos 832 vs 726")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ShardFormatError, match=r"cannot write the folder .*unexpected pos"):
        convert_folder(tmp_path / "p", "pyg", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_vertex_cuts_are_not_converted(tmp_path):
    graph = awkward_case("star", 2).graph
    gd.write_partition(graph, gd.partition_graph(graph, 2, "hdrf"), tmp_path / "p")
    with pytest.raises(ShardFormatError, match="is a vertex-cut partition"):
        convert_folder(tmp_path / "p", "pyg", tmp_path / "out")


def test_heterogeneous_folders_are_refused(tmp_path, pyg_folder):
    meta = json.loads((pyg_folder / "META.json").read_text())
    meta.update(is_hetero=True, node_types=["a", "b"])
    (pyg_folder / "META.json").write_text(json.dumps(meta))
    with pytest.raises(ShardFormatError, match="homogeneous graph, got node types"):
        convert_folder(pyg_folder, "gnn-dist", tmp_path / "back")


def test_pickles_are_not_run(tmp_path, pyg_folder):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "evil"), "w"))

    torch.save(Evil(), pyg_folder / "node_map.pt")
    with pytest.raises(ShardFormatError, match="node_map"):
        read_pyg(pyg_folder)
    assert not (tmp_path / "evil").exists()


def test_what_is_no_partition_folder_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.json").write_text("{}")
    with pytest.raises(ShardFormatError, match="is no partition folder of gnn-dist, DGL or PyG"):
        folder_format(tmp_path / "other")
    with pytest.raises(ShardFormatError, match="does not exist"):
        folder_format(tmp_path / "nowhere")


def test_targets_are_replaced_only_when_asked_and_of_the_same_kind(tmp_path, pyg_folder):
    own = tmp_path / "own"
    with pytest.raises(ShardFormatError, match="replace it with --overwrite"):
        convert_folder(own, "pyg", pyg_folder)
    (pyg_folder / "old").write_text("")
    convert_folder(own, "pyg", pyg_folder, overwrite=True)
    assert not (pyg_folder / "old").exists()
    with pytest.raises(ShardFormatError, match="no folder of this format"):
        convert_folder(own, "pyg", own, overwrite=True)
    with pytest.raises(ShardFormatError, match="exists"):
        convert_folder(pyg_folder, "gnn-dist", own)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "pyg"]


def test_the_command(tmp_path, capfd):
    own = write_own(rich_graph(), gd.Partition(np.arange(40) % 2, 2), tmp_path / "own")
    assert main(["convert", str(own), "--to", "pyg", "--out", str(tmp_path / "pyg")]) == 0
    assert "rich graph, 40 nodes and 150 edges in 2 parts" in capfd.readouterr().out
    assert main(["convert", str(own), "--to", "gnn-dist", "--out", str(tmp_path / "b")]) == 2
    assert "has the format 'gnn-dist' already" in capfd.readouterr().err
    words = ["convert", str(own), "--to", "pyg", "--out", str(tmp_path / "c")]
    assert main([*words, "--original-ids", "ids.npy"]) == 2
    assert "must go with a folder of DGL" in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_programs_are_not_loaded(pyg_folder):
    torch.jit.script(torch.nn.Linear(1, 1)).save(pyg_folder / "node_map.pt")
    with pytest.raises(ShardFormatError, match="it holds a program"):
        read_pyg(pyg_folder)


def test_bad_lists_of_original_ids_are_refused(tmp_path):
    ids = tmp_path / "ids.npy"
    for values in ([0, 0, 2], [0, 1], [[0, 1, 2]]):
        np.save(ids, np.array(values))
        with pytest.raises(ShardFormatError, match=r"each id of 0\.\.2 once"):
            original_ids_of(ids, 3)
    ids.write_text("no array")
    with pytest.raises(ShardFormatError, match="cannot be read as original ids"):
        original_ids_of(ids, 3)
