import io
import os
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from gnn_dist.datasets import load_dataset
from gnn_dist.datasets.ogb_nodes import _ArrayPickle, read_cache
from gnn_dist.errors import DatasetError

EDGES = np.array([[0, 1, 1], [1, 0, 2]])


class FakeDataset:
    """What of `NodePropPredDataset` is used, in its order of work, for a graph of four nodes."""

    fault = None

    def __init__(self, name, root):
        self.root = f"{root}/{name.replace('-', '_')}"
        self.meta_info = {"split": "time"}
        self.pre_process()

    def pre_process(self):
        sys.stdout.write("Loading necessary files...\n")
        if self.fault is not None:
            raise self.fault
        self.graph = {
            "edge_index": EDGES.copy(),
            "node_feat": np.eye(4, dtype=np.float32),
            "edge_feat": None,
            "num_nodes": 4,
        }
        self.labels = np.array([[0.0], [3.0], [1.0], [np.nan]], np.float32)

    def get_idx_split(self):
        return {
            "train": torch.tensor([0, 2]),
            "valid": np.array([1]),
            "test": np.array([], np.int64),
        }

    def __getitem__(self, index):
        return self.graph, self.labels


@pytest.fixture
def ogb(monkeypatch):
    """Install a stand-in for the package, and no terminal."""
    module = ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = type("NodePropPredDataset", (FakeDataset,), {})
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return module.NodePropPredDataset


def in_place(root, name):
    folder = root / name
    folder.mkdir()
    (folder / "RELEASE_v1.txt").touch()
    (folder / "raw").mkdir()
    (folder / "raw" / "edge.csv.gz").touch()


def test_arxiv_is_symmetrised_by_custom(tmp_path, ogb, capsys):
    graph = load_dataset("ogbn-arxiv", tmp_path)
    assert graph.name == "ogbn-arxiv"
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert graph.y.tolist() == [0, 3, 1, -1]
    assert graph.num_classes == 40
    assert graph.train_mask.tolist() == [True, False, True, False]
    assert graph.val_mask.tolist() == [False, True, False, False]
    assert not graph.test_mask.any()
    assert (graph.x == np.eye(4)).all()
    captured = capsys.readouterr()
    assert captured.out == ""  # stdout belongs to the command
    assert captured.err == "Loading necessary files...\n"


def test_directed_keeps_the_citations(tmp_path, ogb):
    graph = load_dataset("OGBN-arXiv", tmp_path, directed=True)
    assert np.array_equal(np.stack(graph.edges()), EDGES[:, [1, 0, 2]])


def test_products_are_stored_both_ways_and_left_alone(tmp_path, ogb):
    in_place(tmp_path, "ogbn_products")
    assert load_dataset("ogbn-products", tmp_path).num_edges == 3


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(DatasetError, match=r"pip install gnn-dist\[ogb\]"):
        load_dataset("ogbn-arxiv", tmp_path)


@pytest.mark.parametrize("files", [(), ("RELEASE_v1.txt",)])
def test_question_before_a_large_download_is_refused_without_a_terminal(tmp_path, ogb, files):
    for file in files:
        (tmp_path / "ogbn_papers100M").mkdir()
        (tmp_path / "ogbn_papers100M" / file).touch()
    with pytest.raises(DatasetError, match=r"ogb asks before so large a download: run `python -c"):
        load_dataset("ogbn-papers100M", tmp_path)


def test_question_about_another_release_is_refused_without_a_terminal(tmp_path, ogb):
    (tmp_path / "ogbn_arxiv").mkdir()
    with pytest.raises(DatasetError, match=r"ogbn_arxiv must hold ogb's RELEASE_v1\.txt, got none"):
        load_dataset("ogbn-arxiv", tmp_path)


def test_questions_are_left_to_the_user_at_a_terminal(tmp_path, ogb, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert load_dataset("ogbn-papers100M", tmp_path).num_nodes == 4


@pytest.mark.parametrize("fault", [SystemExit(-1), EOFError("no answer"), OSError("offline")])
def test_failures_say_what_to_unpack_where(tmp_path, ogb, monkeypatch, fault):
    monkeypatch.setattr(ogb, "fault", fault)
    with pytest.raises(
        DatasetError,
        match=rf"ogb could not load ogbn-arxiv in {tmp_path}/ogbn_arxiv \({type(fault).__name__}: "
        r".*holds raw/, split/ and mapping/",
    ):
        load_dataset("ogbn-arxiv", tmp_path)


def save_cache(root):
    """Write what the package leaves in a folder after its first use."""
    in_place(root, "ogbn_arxiv")
    folder = root / "ogbn_arxiv"
    (folder / "processed").mkdir()
    (folder / "split" / "time").mkdir(parents=True)
    graph = {"edge_index": EDGES[:, :2], "node_feat": np.eye(2, dtype=np.float32), "num_nodes": 2}
    held = {"graph": graph | {"edge_feat": None}, "labels": np.array([[5], [7]])}
    torch.save(held, folder / "processed" / "data_processed", pickle_protocol=4)
    split = {"train": torch.tensor([0]), "valid": np.array([1]), "test": torch.tensor([]).long()}
    torch.save(split, folder / "split" / "time" / "split_dict.pt")


def test_caches_of_the_package_are_read(tmp_path, ogb):
    assert load_dataset("ogbn-arxiv", tmp_path).num_nodes == 4  # no cache yet
    save_cache(tmp_path)
    graph = load_dataset("ogbn-arxiv", tmp_path)
    assert graph.y.tolist() == [5, 7]
    assert graph.indices.tolist() == [1, 0]
    assert (graph.train_mask.tolist(), graph.val_mask.tolist()) == ([True, False], [False, True])


def test_raw_arrays_are_read_in_place_of_the_package(tmp_path, ogb, monkeypatch):
    monkeypatch.setattr(ogb, "fault", OSError("the package must not be asked"))
    in_place(tmp_path, "ogbn_papers100M")
    raw = tmp_path / "ogbn_papers100M" / "raw"
    x = np.ones((4, 2), np.float16)
    np.savez(raw / "data.npz", edge_index=EDGES, node_feat=x, num_nodes_list=np.array([4]))
    np.savez(raw / "node-label.npz", node_label=np.array([[0], [171], [2], [np.nan]], np.float32))
    graph = load_dataset("ogbn-papers100M", tmp_path)
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4]
    assert graph.x.dtype == np.float16
    assert graph.y.tolist() == [0, 171, 2, -1]
    assert graph.val_mask.tolist() == [False, True, False, False]


@pytest.mark.parametrize("protocol", [2, 4])
def test_cache_keeps_values_and_dtypes(tmp_path, protocol):
    arrays = [np.arange(2, dtype=code) for code in "?bhilqBHILQefd"]
    torch.save(
        {"a": arrays, "t": torch.arange(2), "s": np.int64(3)}, tmp_path / "c", pickle, protocol
    )
    held = read_cache(tmp_path / "c")
    for array, back in zip(arrays, held["a"], strict=True):
        assert back.dtype == array.dtype
        assert (back == array).all()
    assert held["t"].tolist() == [0, 1]
    assert held["s"] == 3


def test_cache_written_under_numpy_1_loads():
    content = pickle.dumps(np.arange(3), protocol=2)
    assert b"numpy._core.multiarray" in content
    old = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert _ArrayPickle.Unpickler(io.BytesIO(old)).load().tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [io.StringIO(), os.system, np.save])
def test_cache_may_hold_nothing_but_arrays(tmp_path, content):
    torch.save({"graph": content}, tmp_path / "cache")
    with pytest.raises(pickle.UnpicklingError, match="is no part of an array"):
        read_cache(tmp_path / "cache")
