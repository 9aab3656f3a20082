import json
from pathlib import Path

import numpy as np
import pytest
import torch_geometric.datasets

from gnn_dist.datasets import load_dataset
from gnn_dist.datasets.pyg_downloads import SOURCES
from gnn_dist.errors import DatasetError


def write_saint(folder, labels):
    """Write the raw files of the GraphSAINT datasets: the path 0-1-2 and an isolated node."""
    folder.mkdir(parents=True)
    np.savez(
        folder / "adj_full.npz",
        data=np.ones(4),
        indices=[1, 0, 2, 1],
        indptr=[0, 1, 3, 4, 4],
        shape=[4, 4],
    )
    np.save(folder / "feats.npy", np.arange(8, dtype=np.float64).reshape(4, 2))
    (folder / "class_map.json").write_text(json.dumps(dict(enumerate(labels))))
    (folder / "role.json").write_text(json.dumps({"tr": [0, 3], "va": [1], "te": [2]}))


def test_flickr_is_prepared_from_its_raw_files(tmp_path, capsys):
    write_saint(tmp_path / "Flickr" / "raw", [0, 1, 0, 1])
    graph = load_dataset("flickr", tmp_path)
    assert graph.name == "flickr"
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert graph.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert graph.x.dtype == np.float32
    assert graph.y.tolist() == [0, 1, 0, 1]
    assert graph.train_mask.tolist() == [True, False, False, True]
    assert graph.test_mask.tolist() == [False, False, True, False]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "folder"), [("yelp", "Yelp"), ("AmazonProducts", "AmazonProducts")]
)
def test_several_labels_a_node(tmp_path, name, folder):
    write_saint(tmp_path / folder / "raw", [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
    graph = load_dataset(name, tmp_path)
    assert graph.task == "multilabel"
    assert graph.y.tolist()[3] == [True, True, True]
    assert graph.y.shape == (4, 3)


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.info.name)
def test_failure_says_what_to_put_where(tmp_path, monkeypatch, source):
    def offline(root):
        raise ConnectionError("unreachable")

    monkeypatch.setattr(torch_geometric.datasets, source.dataset, offline)
    with pytest.raises(DatasetError, match=r"\(ConnectionError: unreachable\): put ") as caught:
        load_dataset(source.info.name, tmp_path)
    assert isinstance(caught.value.__cause__, ConnectionError)
    for file in source.raw_files:
        assert file in str(caught.value)
    assert str(Path(tmp_path) / source.dataset / "raw") in str(caught.value)


def test_damaged_raw_file_is_an_error(tmp_path):
    write_saint(tmp_path / "Flickr" / "raw", [0, 1, 0, 1])
    (tmp_path / "Flickr" / "raw" / "feats.npy").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"could not download or prepare Flickr.* put adj_full"):
        load_dataset("flickr", tmp_path)


def test_illegal_values_name_the_folder(tmp_path):
    write_saint(tmp_path / "Flickr" / "raw", [0, 1, 0, -5])
    with pytest.raises(DatasetError, match=r"/Flickr: labels must be class numbers from 0"):
        load_dataset("flickr", tmp_path)
