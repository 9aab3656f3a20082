import logging

import numpy as np
import pytest
import scipy.sparse
import torch

from gnn_dist.datasets import load_dataset
from gnn_dist.errors import DatasetError
from gnn_dist.graph import CSRFeatures


def write(folder, edges="0,1\n1,2\n", name="edges.csv", **arrays):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(edges)
    for key, array in arrays.items():
        np.save(folder / f"{key.replace('__', '.')}.npy", array)
    return str(folder)


def test_edge_file_alone_is_structure_only(tmp_path):
    write(tmp_path, "0,1\n1,2\n1,2\n2,2\n")
    graph = load_dataset(str(tmp_path / "edges.csv"))
    assert graph.indptr.tolist() == [0, 0, 1, 4]
    assert graph.indices.tolist() == [0, 1, 1, 2]  # repeats and self-loops stay
    assert graph.x is graph.y is graph.train_mask is graph.edge_id is None
    assert graph.name == "edges"


def test_folder_gives_every_field(tmp_path):
    weights, attributes, types = np.array([2, 1], np.float16), np.eye(2), np.array([1, 0], np.int8)
    folder = write(
        tmp_path / "cites",
        "1,2\n0,1\n",
        features=np.ones((4, 3), np.float16),
        labels=np.array([0, 1, 0, -1]),
        train_mask=np.array([1, 0, 0, 0]),
        val_mask=np.array([False, True, False, False]),
        test_mask=np.zeros(4, np.uint8),
        edge_weight=weights,
        edge_attr=attributes,
        edge_type=types,
    )
    graph = load_dataset(folder)
    assert graph.name == "cites"
    assert graph.num_nodes == 4  # the last node is isolated
    assert graph.x.dtype == np.float16
    assert graph.y.tolist() == [0, 1, 0, -1]
    assert graph.train_mask.tolist() == [True, False, False, False]
    assert graph.test_mask.tolist() == [False] * 4
    # CSR order is 0 -> 1, 1 -> 2: the reverse of the file's, edge data with it.
    assert graph.edge_id.tolist() == [1, 0]
    assert graph.edge_weight.tolist() == [1, 2]
    assert graph.edge_weight.dtype == np.float16
    assert graph.edge_attr.tolist() == attributes[::-1].tolist()
    assert graph.edge_type.tolist() == [0, 1]


def test_several_splits_by_columns_or_stacked(tmp_path):
    columns = np.array([[1, 0], [0, 1], [0, 0]], bool)
    first = load_dataset(write(tmp_path / "a", train_mask=columns))
    second = load_dataset(write(tmp_path / "b", train_masks=columns.T))
    assert first.num_splits == second.num_splits == 2
    assert (first.train_mask == columns).all()
    assert (second.train_mask == columns).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_feature_dtype_is_kept(tmp_path, dtype):
    assert load_dataset(write(tmp_path, x=np.ones((3, 2), dtype))).x.dtype == dtype


def test_a_path_takes_only_files_with_its_own_name(tmp_path):
    write(tmp_path, x=np.ones((9, 1)), edges__x=np.ones((5, 2)), other__y=np.zeros(5, int))
    graph = load_dataset(str(tmp_path / "edges.csv"))
    assert graph.x.shape == (5, 2)
    assert graph.y is None


def test_npy_edges_called_like_a_field_are_edges(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    assert load_dataset(str(tmp_path / "x.npy")).num_edges == 3


@pytest.mark.parametrize("save", ["scipy", "prefixed"])
def test_sparse_features_stay_sparse(tmp_path, save):
    folder = write(tmp_path)
    matrix = scipy.sparse.csr_array(np.array([[0, 1.5], [0, 0], [2, 0]]))
    if save == "scipy":
        scipy.sparse.save_npz(tmp_path / "x.npz", matrix)
    else:
        np.savez(
            tmp_path / "x.npz",
            x_indptr=matrix.indptr,
            x_indices=matrix.indices,
            x_data=matrix.data,
            x_shape=matrix.shape,
        )
    graph = load_dataset(folder)
    assert isinstance(graph.x, CSRFeatures)
    assert (graph.x.to_dense() == matrix.toarray()).all()


def test_sparse_features_of_another_layout_are_refused(tmp_path):
    folder = write(tmp_path)
    scipy.sparse.save_npz(tmp_path / "x.npz", scipy.sparse.csc_array(np.eye(3)))
    with pytest.raises(DatasetError, match=r"x\.npz, key format must be csr, got .*csc.*tocsr"):
        load_dataset(folder)


def test_num_nodes_and_symmetric_follow_the_path(tmp_path):
    write(tmp_path, "0,1,0.5\n1,2,2\n2,1,3\n")
    graph = load_dataset(f"{tmp_path / 'edges.csv'}:num_nodes=5,symmetric=true")
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4, 4]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert graph.edge_weight.tolist() == [0.5, 0.5, 3.0, 2.0]
    assert graph.edge_id.tolist() == [0, 0, 2, 1]  # lines of the file
    assert graph.is_symmetric is False  # the two directions of 1 - 2 differ in weight


def test_archive_in_one_file(tmp_path):
    path = tmp_path / "graph.npz"
    np.savez(path, edge_index=[[0, 1], [1, 0]], x=np.eye(3), y=[0, 1, 0], train_mask=[1, 0, 1])
    graph = load_dataset(str(path))
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (3, 3, 2)
    assert graph.train_mask.tolist() == [True, False, True]


def test_archive_warns_of_keys_it_does_not_read(tmp_path, caplog):
    path = tmp_path / "graph.npz"
    np.savez(path, edge_index=[[0], [1]], features=np.eye(2))
    with caplog.at_level(logging.WARNING):
        assert load_dataset(f"{path}:num_nodes=2").x is None
    assert "keys not read: features" in caplog.text


def test_saved_pyg_data(tmp_path):
    from torch_geometric.data import Data

    path = tmp_path / "data.pt"
    torch.save(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 2], [1, 1]])), path)
    graph = load_dataset(str(path))
    assert graph.indptr.tolist() == [0, 0, 2, 2]
    assert (graph.x == np.eye(3)).all()
    with pytest.raises(DatasetError, match=r"data\.pt: x must have shape \(num_nodes=5, F\)"):
        load_dataset(f"{path}:num_nodes=5")


class Custom:
    pass


@pytest.mark.parametrize("content", [{"a": 1}, [torch.zeros(2)], Custom(), b"text"])
def test_other_pt_files_are_refused(tmp_path, content):
    path = tmp_path / "data.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(DatasetError, match=r"data\.pt must (be a|hold one) torch_geometric Data"):
        load_dataset(str(path))


def test_heterogeneous_pt_is_refused(tmp_path):
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["a"].x = torch.zeros(2, 1)
    torch.save(data, tmp_path / "data.pt")
    with pytest.raises(DatasetError, match=r"data\.pt: data must be homogeneous"):
        load_dataset(str(tmp_path / "data.pt"))


@pytest.mark.parametrize(
    ("edges", "arrays", "message"),
    [
        ("0,1\n1,-2\n", {}, r"edges\.csv, line 2: nodes are numbered from 0, got -2"),
        (
            "src,dst\n0,1\n3,1\n",
            {"y": np.zeros(3, int)},
            r"edges\.csv, line 3: nodes are numbered from 0 to 2 \(N = 3\), got 3",
        ),
        ("src,dst\n", {}, r"edges\.csv must hold edges, got none, and nothing else tells N"),
        ("0,1,inf\n", {}, r"edges\.csv, line 1: weights must be finite, got inf"),
        ("0,1,1\n", {"edge_weight": np.ones(1)}, "must have weights or edge_weight.npy, got both"),
        ("0,1\n", {"edge_weight": np.ones(3)}, r"edge_weight must have one row per edge \(1\)"),
        ("0,1\n", {"x": np.eye(2), "features": np.eye(2)}, "must hold x once, got x.npy and feat"),
        ("0,1\n", {"x": np.eye(2), "y": np.zeros(3, int)}, r"y must have shape \(num_nodes=2,\)"),
        ("0,1\n", {"x": np.array([[0], [np.inf]])}, "x must be finite, got inf in row 1"),
        ("0,1\n", {"train_mask": np.array([0, 2])}, "train_mask must hold booleans or 0 and 1"),
        ("0,5000000\n", {}, r"without large gaps, got ids up to 5000000 on 1 edges.*:num_nodes=5"),
    ],
)
def test_faults_name_the_place(tmp_path, edges, arrays, message):
    with pytest.raises(DatasetError, match=message):
        load_dataset(write(tmp_path / "d", edges, **arrays))


def test_large_gaps_are_fine_when_num_nodes_is_stated(tmp_path):
    folder = write(tmp_path / "d", "0,500000\n")
    assert load_dataset(f"{folder}:num_nodes=500001").num_nodes == 500_001


def test_no_edges_are_fine_when_something_tells_the_nodes(tmp_path):
    graph = load_dataset(write(tmp_path / "d", "src,dst\n", y=np.array([0, 1])))
    assert (graph.num_nodes, graph.num_edges) == (2, 0)


def test_folder_without_or_with_several_edge_lists(tmp_path):
    with pytest.raises(DatasetError, match=r"must hold one of edges\.csv, .*, got none"):
        load_dataset(str(tmp_path))
    write(tmp_path)
    np.save(tmp_path / "edges.npy", np.zeros((2, 1), int))
    with pytest.raises(DatasetError, match=r"got edges\.csv, edges\.npy"):
        load_dataset(str(tmp_path))


def test_unknown_kind_of_file(tmp_path):
    (tmp_path / "graph.xml").write_text("<graph/>")
    with pytest.raises(
        DatasetError, match=r"must be a folder or end in one of \.csv, \.tsv, \.parquet"
    ):
        load_dataset(str(tmp_path / "graph.xml"))
