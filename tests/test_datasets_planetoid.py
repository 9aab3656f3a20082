import os
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gnn_dist.datasets import load_dataset
from gnn_dist.datasets.planetoid import SOURCES
from gnn_dist.errors import DatasetError
from gnn_dist.graph import CSRFeatures

DATA = os.environ.get("GNN_DIST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="needs GNN_DIST_DATA")
NUM_TRAIN, NUM_ALL, NUM_TEST = 20, 600, 10


def write_raw(folder, title="Cora", value=1.0):
    """Write a small graph in Planetoid's layout: a ring of 610 nodes, test ids not in order."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    x = value * (rng.random((NUM_ALL + NUM_TEST, 7)) < 0.3).astype(np.float32)
    y = np.eye(3)[np.arange(NUM_ALL + NUM_TEST) % 3]
    test_index = np.arange(NUM_ALL, NUM_ALL + NUM_TEST)[::-1]
    last = NUM_ALL + NUM_TEST
    parts = {
        **{"x": x[:NUM_TRAIN], "allx": x[:NUM_ALL], "tx": x[test_index]},
        **{"y": y[:NUM_TRAIN], "ally": y[:NUM_ALL], "ty": y[test_index]},
        "graph": {v: [(v + 1) % last, (v - 1) % last, v] for v in range(last)},
    }
    for name, part in parts.items():
        (folder / f"ind.{title.lower()}.{name}").write_bytes(pickle.dumps(part, protocol=2))
    np.savetxt(folder / f"ind.{title.lower()}.test.index", test_index, fmt="%d")
    return x, y


def load_small(root, name="cora"):
    """Load the small graph: the registered source with the small graph's sizes."""
    source = next(source for source in SOURCES if source.info.name == name)
    small = replace(
        source, info=replace(source.info, num_nodes=NUM_ALL + NUM_TEST), num_test=NUM_TEST
    )
    return small.load(root, seed=0, directed=False)


@pytest.mark.parametrize("parent", ["planetoid", "Planetoid", "."])
def test_raw_files_are_found_read_and_left_alone(tmp_path, parent):
    x, y = write_raw(tmp_path / parent / "Cora" / "raw")
    before = sorted(tmp_path.rglob("*"))
    graph = load_small(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert graph.num_edges == 2 * 610  # without the self-loops
    assert graph.indices[:2].tolist() == [1, 609]
    assert isinstance(graph.x, CSRFeatures)
    assert graph.x.data is None
    assert (graph.x.to_dense() == x).all()
    assert (graph.y == y.argmax(1)).all()
    assert np.flatnonzero(graph.train_mask).tolist() == list(range(20))
    assert np.flatnonzero(graph.val_mask).tolist() == list(range(20, 520))
    assert np.flatnonzero(graph.test_mask).tolist() == list(range(600, 610))


def test_weighted_features_keep_their_values(tmp_path):
    x, _ = write_raw(tmp_path / "planetoid" / "PubMed" / "raw", "PubMed", value=0.5)
    graph = load_small(tmp_path, "pubmed")
    assert (graph.x.data == 0.5).all()
    assert (graph.x.to_dense() == x).all()


@needs_data
def test_cora_equals_pyg(tmp_path):
    from torch_geometric.datasets import Planetoid

    shutil.copytree(Path(DATA) / "planetoid" / "Cora", tmp_path / "Cora")
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = Planetoid(str(tmp_path), "Cora")[0]
    graph = load_dataset("cora", DATA)
    order = np.lexsort(data.edge_index.numpy())
    assert np.array_equal(np.stack(graph.edges()), data.edge_index.numpy()[:, order])
    assert np.array_equal(graph.x.to_dense(), data.x.numpy())
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(graph, name), data[name].numpy())
    assert [int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        *(140, 500, 1000)
    ]


def test_missing_files_are_listed(tmp_path):
    folder = tmp_path / "planetoid" / "Cora" / "raw"
    write_raw(folder)
    (folder / "ind.cora.tx").unlink()
    (folder / "ind.cora.graph").unlink()
    with pytest.raises(DatasetError, match=r"Cora/raw must hold ind\.cora\.tx, ind\.cora\.graph: "):
        load_dataset("cora", tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x02c", b"garbage", pickle.dumps({"a": 1})])
@pytest.mark.parametrize("part", ["allx", "graph", "test.index"])
def test_damaged_files_are_errors(tmp_path, part, content):
    folder = tmp_path / "planetoid" / "Cora" / "raw"
    write_raw(folder)
    (folder / f"ind.cora.{part}").write_bytes(content)
    with pytest.raises(DatasetError, match=r"Cora/raw must hold (readable|610 nodes and 10 test)"):
        load_small(tmp_path)


def test_failed_download_says_what_to_put_where(tmp_path, monkeypatch):
    import torch_geometric.datasets

    def offline(root, name):
        raise OSError(f"no network for {name}")

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", offline)
    with pytest.raises(
        DatasetError,
        match=r"could not download .* \(OSError: no network for Cora\): put ind\.cora\.x, .* into "
        rf"{tmp_path}/planetoid/Cora/raw",
    ):
        load_dataset("cora", tmp_path)


def test_download_goes_where_it_is_read_from(tmp_path, monkeypatch):
    import torch_geometric.datasets

    class Planetoid:
        def __init__(self, root, name):
            write_raw(Path(root) / name / "raw")

        def __getitem__(self, index):
            return None

    monkeypatch.setattr(torch_geometric.datasets, "Planetoid", Planetoid)
    assert load_small(tmp_path).num_nodes == 610


def test_list_of_test_nodes_that_was_cut_short(tmp_path):
    folder = tmp_path / "planetoid" / "Cora" / "raw"
    write_raw(folder)
    lines = (folder / "ind.cora.test.index").read_text().splitlines(keepends=True)
    (folder / "ind.cora.test.index").write_text("".join(lines[:7]))
    with pytest.raises(DatasetError, match="must hold 610 nodes and 10 test nodes, got 610 and 7"):
        load_small(tmp_path)
