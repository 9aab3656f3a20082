"""The partition folder: exact contents, round trips, and every way it can be damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case

from gnn_dist.convert.own_folder import read_own
from gnn_dist.errors import PartitionError, ShardFormatError
from gnn_dist.graph import CSRFeatures, graph_from_edges
from gnn_dist.partition import Partition
from gnn_dist.report import card_page, read_card
from gnn_dist.shard.format import FORMAT_VERSION, read_meta, write_partition
from gnn_dist.shard.reader import read_parts


def small_graph(**changes):
    """Nodes 0..4 in a ring 0 -> 1 -> ... -> 0, and one edge 3 -> 1."""
    fields = {
        "x": np.arange(10, dtype=np.float16).reshape(5, 2),
        "y": np.array([0, 1, -1, 1, 0]),
        "train_mask": np.array([True, False, False, True, False]),
        "edge_weight": np.arange(6, dtype=np.float32),
    }
    edges = [0, 1, 2, 3, 4, 3], [1, 2, 3, 4, 0, 1]
    return graph_from_edges(*edges, num_nodes=5, name="ring", **{**fields, **changes})


SMALL_PARTITION = Partition([1, 0, 1, 0, 0], 2)  # part 0: 1, 3, 4; part 1: 0, 2


@pytest.fixture
def folder(tmp_path):
    write_partition(small_graph(), SMALL_PARTITION, tmp_path / "parts")
    return tmp_path / "parts"


def test_the_small_folder_holds_exactly_this(folder):
    # Global ids: 0 = node 1, 1 = node 3, 2 = node 4 | 3 = node 0, 4 = node 2.
    load = {p.stem: np.load(p) for p in (folder / "part-0000").iterdir()}
    assert load["node_id"].tolist() == [1, 3, 4]
    assert load["halo"].tolist() == [3, 4]
    assert load["indptr"].tolist() == [0, 2, 3, 4]
    # Node 1 reads 0 (halo, local 3) and 3 (local 1); node 3 reads 2 (local 4); node 4 reads 3.
    assert load["indices"].tolist() == [3, 1, 4, 1]
    assert load["indices"].dtype == np.int32
    assert load["edge_weight"].tolist() == [0.0, 5.0, 2.0, 3.0]
    assert load["edge_id"].tolist() == [0, 5, 2, 3]
    assert load["x"].tolist() == [[2, 3], [6, 7], [8, 9]]
    assert load["x"].dtype == np.float16
    assert load["y"].tolist() == [1, 1, 0]
    assert load["train_mask"].tolist() == [False, True, False]
    assert load["train_mask"].dtype == bool
    assert sorted(load) == sorted(
        ["edge_id", "edge_weight", "halo", "indices", "indptr", "node_id", "train_mask", "x", "y"]
    )


def test_meta_says_what_there_is(folder):
    meta = read_meta(folder)
    assert meta.format_version == FORMAT_VERSION
    assert (meta.dataset, meta.num_nodes, meta.num_edges, meta.num_parts) == ("ring", 5, 6, 2)
    assert (meta.num_features, meta.num_classes, meta.task) == (2, 2, "multiclass")
    assert meta.node_ptr == (0, 3, 5)
    assert meta.num_splits == 1
    assert (meta.cut, meta.symmetric) == ("edge", False)
    structure = {"name": "edges", "indptr": "indptr", "indices": "indices", "rows": "owned"}
    assert meta.structures == (structure,)
    row = meta.arrays_of(1)["x"]
    assert (row.file, row.dtype, row.shape, row.rows) == (
        "part-0001/x.npy",
        "float16",
        (2, 2),
        "owned",
    )
    assert len(row.sha256) == 64
    assert meta.quality["num_halo"] == [2, 2]


def edges_by_original_id(graph, arrays_list, partition):
    """Return the (dst, src, edge data) rows that all parts hold."""
    rows = []
    for arrays in arrays_list:
        original = np.concatenate([arrays.node_id, partition.order[arrays.halo]])
        dst = np.repeat(arrays.node_id, np.diff(arrays.indptr))
        data = [v for _, v in sorted(arrays.edge.items())]
        rows += list(zip(dst, original[arrays.indices], *data, strict=True))
    return rows


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("name", AWKWARD)
def test_every_edge_and_row_comes_back_once(name, together, tmp_path):
    _, graph, partition = awkward_case(name, 4)
    write_partition(graph, partition, tmp_path / "parts")
    shards = [read_parts(tmp_path / "parts", range(p, p + together)) for p in range(0, 4, together)]
    src, dst = graph.edges()
    data = [getattr(graph, n) for n in ("edge_id", "edge_weight") if getattr(graph, n) is not None]
    expected = sorted(zip(dst, src, *data, strict=True))
    assert sorted(edges_by_original_id(graph, shards, partition)) == expected
    ids = np.concatenate([shard.node_id for shard in shards])
    assert ids.tolist() == partition.order.tolist()
    np.testing.assert_array_equal(np.concatenate([s.x for s in shards]), graph.x[ids])
    for field in ("y", "train_mask", "val_mask", "test_mask"):
        got = np.concatenate([shard.owned[field] for shard in shards])
        np.testing.assert_array_equal(got, getattr(graph, field)[ids])
        assert got.dtype == getattr(graph, field).dtype
    for shard in shards:
        used = np.unique(shard.indices[shard.indices >= len(shard.node_id)])
        assert len(used) == len(shard.halo)  # the halo holds what is read, and nothing else


@pytest.mark.parametrize("data", [None, np.array([0.5, 2.0, 1.5])])
def test_sparse_features_stay_sparse(data, tmp_path):
    features = CSRFeatures(np.array([0, 1, 1, 2, 2, 3]), np.array([6, 0, 3]), data, 7)
    write_partition(small_graph(x=features), SMALL_PARTITION, tmp_path / "parts")
    arrays = read_parts(tmp_path / "parts", range(2))
    assert isinstance(arrays.x, CSRFeatures)
    assert (arrays.x.data is None) == (data is None)
    np.testing.assert_array_equal(arrays.x.to_dense(), features.to_dense()[arrays.node_id])
    assert not list((tmp_path / "parts").glob("*/x.npy"))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_feature_dtypes_are_kept(dtype, tmp_path):
    graph = small_graph(x=np.ones((5, 3), dtype))
    write_partition(graph, SMALL_PARTITION, tmp_path / "parts")
    assert read_parts(tmp_path / "parts", range(1)).x.dtype == dtype


def test_several_splits_and_labels(tmp_path):
    masks = np.eye(5, 3, dtype=bool)
    graph = small_graph(y=np.eye(5, 4), train_mask=masks)
    write_partition(graph, SMALL_PARTITION, tmp_path / "parts")
    meta = read_meta(tmp_path / "parts")
    assert (meta.num_splits, meta.task, meta.num_classes) == (3, "multilabel", 4)
    arrays = read_parts(tmp_path / "parts", range(2))
    np.testing.assert_array_equal(arrays.owned["train_mask"], masks[arrays.node_id])
    assert arrays.owned["y"].dtype == bool


def test_structure_alone_is_enough(tmp_path):
    graph = graph_from_edges([0, 1], [1, 0], num_nodes=4)
    write_partition(graph, Partition([0, 1, 0, 1], 2), tmp_path / "parts")
    arrays = read_parts(tmp_path / "parts", range(2))
    assert (arrays.x, arrays.owned, arrays.edge) == (None, {}, {})


def test_the_fingerprint_is_of_all_that_training_depends_on(tmp_path):
    base = awkward_case("random partition", 2).graph
    weights = np.linspace(0.5, 1.5, base.num_edges)
    changed = [
        base,
        base.replace(y=(base.y + 1) % 3),
        base.replace(x=base.x + 1),
        base.replace(edge_weight=weights),
        base.replace(edge_weight=weights + 1),
    ]
    assignment = Partition(np.arange(base.num_nodes) % 2, 2)
    made = [
        write_partition(graph, assignment, tmp_path / str(i)).fingerprint
        for i, graph in enumerate(changed)
    ]
    assert len(set(made)) == len(made)


def test_fingerprint_is_of_the_graph_not_of_the_partition(tmp_path):
    graph = small_graph()
    metas = [
        write_partition(g, Partition(a, 2), tmp_path / str(i))
        for i, (g, a) in enumerate(
            [
                (graph, [0, 1, 0, 1, 0]),
                (graph, [1, 1, 0, 0, 0]),
                (small_graph(x=np.ones((5, 2))), [1, 1, 0, 0, 0]),
            ]
        )
    ]
    assert metas[0].fingerprint == metas[1].fingerprint != metas[2].fingerprint


def test_existing_folders_are_kept_unless_told(folder, tmp_path):
    with pytest.raises(ShardFormatError, match="--overwrite"):
        write_partition(small_graph(), SMALL_PARTITION, folder)
    write_partition(small_graph(), Partition([0] * 5, 1), folder, overwrite=True)
    assert read_meta(folder).num_parts == 1
    assert not (folder / "part-0001").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ShardFormatError, match="no partition folder"):
        write_partition(small_graph(), SMALL_PARTITION, tmp_path / "mine", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "parts"]


def test_overwriting_through_a_link_keeps_the_link(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    write_partition(small_graph(), Partition([0] * 5, 1), link, overwrite=True)
    assert link.is_symlink()
    assert read_meta(folder).num_parts == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "parts"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", fail)
    with pytest.raises(ShardFormatError, match="No space left"):
        write_partition(small_graph(), SMALL_PARTITION, tmp_path / "parts")
    assert list(tmp_path.iterdir()) == []


def test_a_partition_of_another_graph_is_refused(tmp_path):
    with pytest.raises(PartitionError, match="5 nodes, got 3"):
        write_partition(small_graph(), Partition([0, 1, 0], 2), tmp_path / "parts")


def test_missing_folder_and_other_folder(tmp_path):
    with pytest.raises(ShardFormatError, match="does not exist"):
        read_meta(tmp_path / "nowhere")
    with pytest.raises(ShardFormatError, match="is no partition folder"):
        read_meta(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 1, got 99"),
        ({"format_version": None}, "format version 1, got None"),
        ({"node_ptr": [0, 3, 6]}, "node_ptr is of 2 parts and 6 nodes"),
        ({"node_ptr": [0, 4, 3]}, "node_ptr must rise"),
        ({"node_ptr": []}, "node_ptr must rise"),
        ({"node_ptr": "abc"}, "is damaged"),
        ({"num_parts": 3}, "the header of 3 and 5"),
        ({"cut": "both"}, "cut must be 'edge' or 'vertex', got 'both'"),
        ({"cut": "vertex"}, "quality lacks num_clones, num_split"),
        ({"quality": {}}, "quality lacks edge_cut, edge_cut_fraction"),
        ({"partitioner": {"method": "x"}}, "partitioner lacks options"),
        ({"surprise": 1}, "surprise"),
        ({"arrays": 5}, "is damaged"),
        ({"arrays": [{"name": "x"}]}, "is damaged"),
    ],
)
def test_a_damaged_meta_is_named(change, message, folder):
    path = folder / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ShardFormatError, match=message) as caught:
        read_meta(folder)
    assert str(path) in str(caught.value)


def places(value, path=()):
    """Yield where something stands in a JSON value; of long lists, only in the first two."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


ODD_VALUES = [None, -1, "x", [], {}, 2**70, 1.5, True, float("nan"), [None], {"x": "x"}]


def test_odd_values_in_meta_are_refused_or_harmless(tmp_path):
    graph, partition = awkward_case("random partition", 2)[1:]
    write_partition(graph, partition, tmp_path / "p")
    path = tmp_path / "p/meta.json"
    text, refused = path.read_text(), 0
    for place in places(json.loads(text)):
        for odd in ODD_VALUES:
            meta = json.loads(text)
            holder = meta
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = odd
            path.write_text(json.dumps(meta))
            try:
                card_page(read_card(tmp_path / "p"))
                read_parts(tmp_path / "p", range(2))
                read_own(tmp_path / "p")
            except ShardFormatError:
                refused += 1
    assert refused > 500


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format_version": 1}', "\xff"])
def test_meta_that_is_no_meta(text, folder):
    (folder / "meta.json").write_text(text, encoding="latin-1")
    with pytest.raises(ShardFormatError, match=r"meta\.json"):
        read_meta(folder)


def test_files_never_lead_out_of_the_folder(folder):
    path = folder / "meta.json"
    path.write_text(path.read_text().replace("part-0000/x.npy", "../../secret.npy"))
    with pytest.raises(ShardFormatError, match=r"secret\.npy"):
        read_meta(folder)


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(data[:-3])
    elif how == "flipped":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "reshaped":
        np.save(path, np.load(path)[:-1])
    elif how == "pickled":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "flipped", "reshaped", "pickled"])
@pytest.mark.parametrize("array", ["indptr", "x"])
def test_a_damaged_file_is_named(array, how, verify, folder):
    path = folder / "part-0001" / f"{array}.npy"
    damage(path, how)
    if how == "flipped" and not verify:
        if array == "x":
            read_parts(folder, range(1, 2), verify=False)  # only the hash can tell
            return
        with pytest.raises(ShardFormatError):
            read_parts(folder, range(1, 2), verify=False)
        return
    with pytest.raises(ShardFormatError, match=str(path)):
        read_parts(folder, range(1, 2), verify=verify)
    read_parts(folder, range(1), verify=verify)  # the other part is whole


def test_a_missing_part_is_named(folder):
    for path in (folder / "part-0001").iterdir():
        path.unlink()
    (folder / "part-0001").rmdir()
    with pytest.raises(ShardFormatError, match="part-0001 is missing"):
        read_parts(folder, range(2))


@pytest.mark.parametrize(
    ("array", "values", "message"),
    [
        ("indptr", [0, 3, 2, 4], "indptr must not fall"),
        ("indptr", [0, 1, 2, 3], "indptr must rise from 0 to 4"),
        ("indices", [3, 1, 5, 1], r"indices must lie in 0\.\.4"),
        ("indices", [3, -1, 4, 1], r"indices must lie in 0\.\.4"),
        ("halo", [4, 3], "halo must hold ascending"),
        ("halo", [1, 4], "halo must hold ascending"),
        ("halo", [3, 9], "halo must hold ascending"),
    ],
)
def test_arrays_that_do_not_fit_each_other(array, values, message, folder):
    path = folder / "part-0000" / f"{array}.npy"
    np.save(path, np.array(values, np.load(path).dtype))
    with pytest.raises(ShardFormatError, match=message):
        read_parts(folder, range(1), verify=False)


@pytest.mark.parametrize("parts", [range(0), range(2, 3), range(-1, 1), range(0, 2, 2)])
def test_parts_that_do_not_exist(parts, folder):
    with pytest.raises(ShardFormatError, match="consecutive parts"):
        read_parts(folder, parts)
