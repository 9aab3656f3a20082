import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from gnn_dist.datasets import load_dataset
from gnn_dist.datasets.npz_graphs import SOURCES
from gnn_dist.errors import DatasetError
from gnn_dist.graph import CSRFeatures

DATA = os.environ.get("GNN_DIST_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="needs GNN_DIST_DATA")
RAW = "CS/raw/ms_academic_cs.npz"


def write_raw(root, **changes):
    """Write the layout that PyG downloads: 4 nodes, edges 0-1, 1-2 one way, and a self-loop."""
    path = root / RAW
    path.parent.mkdir(parents=True)
    adjacency = scipy.sparse.csr_array(
        (np.ones(3), ([0, 2, 3], [1, 1, 3])), (4, 4), dtype=np.float32
    )
    attributes = scipy.sparse.csr_array(np.array([[0, 2], [1, 0], [0, 0], [1, 1]], np.float64))
    arrays = {
        **{f"adj_{k}": getattr(adjacency, k) for k in ("data", "indices", "indptr", "shape")},
        **{f"attr_{k}": getattr(attributes, k) for k in ("data", "indices", "indptr", "shape")},
        "labels": np.array([0, 1, 1, 2], np.uint8),
    }
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})


@needs_data
@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.info.name)
def test_labels_cover_the_listed_classes(source):
    graph = source.load(Path(DATA), seed=0, directed=False)
    assert np.unique(graph.y).tolist() == list(range(source.info.num_classes))
    dense = source.info.name in ("tolokers", "minesweeper")
    assert isinstance(graph.x, CSRFeatures) is not dense
    src, dst = graph.edges()
    assert (src != dst).all()


@needs_data
def test_official_splits_are_columns():
    graph = load_dataset("minesweeper", DATA)
    stored = np.load(Path(DATA) / "minesweeper.npz")
    assert graph.train_mask.shape == (10_000, 10)
    for split in (0, 9):
        assert (graph.val_mask[:, split] == stored["val_masks"][split]).all()
    total = graph.train_mask.astype(int) + graph.val_mask + graph.test_mask
    assert (total == 1).all()


@needs_data
def test_values_are_as_stored():
    graph = load_dataset("Cora_ML", DATA)
    stored = np.load(Path(DATA) / "cora_ml.npz")
    assert graph.x.dtype == np.float32
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(getattr(graph.x, name), stored[f"x_{name}"])
    assert load_dataset("amazon_photo", DATA).x.data is None


def test_raw_file_of_pyg_is_symmetrised_and_keeps_counts(tmp_path):
    write_raw(tmp_path)
    graph = load_dataset("coauthor-cs", tmp_path)
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert graph.x.to_dense().tolist() == [[0, 2], [1, 0], [0, 0], [1, 1]]
    assert graph.x.dtype == np.float32
    assert graph.y.tolist() == [0, 1, 1, 2]


def test_prepared_file_wins_over_the_raw_one(tmp_path):
    write_raw(tmp_path)
    np.savez(tmp_path / "coauthor_cs.npz", edge_index=[[0], [1]])
    assert load_dataset("coauthor-cs", tmp_path).num_edges == 1


def test_incomplete_raw_file_names_the_key(tmp_path):
    write_raw(tmp_path, labels=None)
    with pytest.raises(DatasetError, match=r"ms_academic_cs\.npz must hold the keys? labels"):
        load_dataset("coauthor-cs", tmp_path)


def test_raw_file_with_wrong_values_is_named(tmp_path):
    write_raw(tmp_path, adj_indices=np.array([1, 1, 9]))
    with pytest.raises(
        DatasetError, match=r"ms_academic_cs\.npz: edge \d \(9 -> \d\) ends at a node"
    ):
        load_dataset("coauthor-cs", tmp_path)


def test_download_is_the_last_resort(tmp_path, monkeypatch):
    import torch_geometric.datasets

    class Coauthor:
        def __init__(self, root, name):
            assert (Path(root), name) == (tmp_path, "CS")
            write_raw(tmp_path)

        def __getitem__(self, index):
            return None

    monkeypatch.setattr(torch_geometric.datasets, "Coauthor", Coauthor)
    assert load_dataset("coauthor-cs", tmp_path).num_nodes == 4


def test_missing_file_says_where_to_put_it(tmp_path):
    with pytest.raises(DatasetError, match=rf"dblp must lie at {tmp_path}/dblp\.npz, got no such"):
        load_dataset("dblp", tmp_path)


def test_damaged_file_names_file_and_key(tmp_path):
    np.savez(tmp_path / "dblp.npz", indptr=[0, 1], indices=[0], y=np.array([None]))
    with pytest.raises(DatasetError, match=r"dblp\.npz, key y must be a plain array"):
        load_dataset("dblp", tmp_path)
