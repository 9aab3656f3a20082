import numpy as np
import pytest

from gnn_dist.datasets.arrays import (
    csr_from_dense,
    graph_from_arrays,
    npz_keys,
    read_npy,
    read_npz,
)
from gnn_dist.errors import DatasetError
from gnn_dist.graph import CSRFeatures

PATH_GRAPH = {"edge_index": np.array([[0, 1], [1, 2]])}


def build(**arrays):
    return graph_from_arrays({**PATH_GRAPH, **arrays}, "here.npz", name="toy")


def test_edge_index_runs_from_row_0_to_row_1():
    graph = build()
    assert graph.indptr.tolist() == [0, 0, 1, 2]
    assert graph.indices.tolist() == [0, 1]
    assert graph.name == "toy"


def test_num_nodes_keeps_isolated_nodes():
    assert build(num_nodes=np.array(5)).num_nodes == 5
    with pytest.raises(DatasetError, match=r"here.npz, key num_nodes must be one count, got 2\.5"):
        build(num_nodes=np.array(2.5))


def test_csr_rows_are_destinations_and_get_sorted_with_their_edge_data():
    arrays = {
        "indptr": np.array([0, 2, 2, 3]),
        "indices": np.array([2, 1, 0]),
        "edge_weight": np.array([0.2, 0.1, 0.5]),
    }
    graph = graph_from_arrays(arrays, "here.npz", name="toy")
    assert graph.indices.tolist() == [1, 2, 0]
    assert graph.edge_weight.tolist() == [0.1, 0.2, 0.5]
    assert graph.edge_id.tolist() == [1, 0, 2]


def test_ascending_csr_is_taken_as_it_is():
    indices = np.array([1, 1, 0], np.int32)
    graph = graph_from_arrays(
        {"indptr": np.array([0, 2, 3]), "indices": indices}, "here.npz", name="toy"
    )
    assert graph.indices is indices


def test_csr_features_with_and_without_values():
    csr = {
        "x_indptr": np.array([0, 1, 1, 3]),
        "x_indices": np.array([1, 0, 2]),
        "x_shape": np.array([3, 4]),
    }
    ones = build(**csr)
    assert isinstance(ones.x, CSRFeatures)
    assert ones.x.data is None
    assert ones.x.to_dense().tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]]
    assert build(**csr, x_data=np.zeros(0, np.float32)).x.data is None
    valued = build(**csr, x_data=np.array([0.5, 1, 2], np.float64))
    assert valued.x.dtype == np.float64
    assert valued.x.to_dense()[2].tolist() == [1, 0, 2, 0]


def test_stacked_masks_become_columns():
    stack = np.array([[1, 0, 0], [0, 1, 1]], bool)
    graph = build(train_masks=stack, val_masks=~stack)
    assert graph.train_mask.shape == (3, 2)
    assert graph.train_mask[:, 1].tolist() == [False, True, True]
    assert graph.val_mask[:, 0].tolist() == [False, True, True]
    assert graph.test_mask is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"indptr": np.array([0])}, "here.npz must hold edge_index or indptr, got both"),
        ({"edge_index": np.zeros((3, 2), int)}, r"key edge_index must have shape \(2, E\), got"),
        ({"edge_index": np.array([[0], [-1]])}, r"here.npz: edge 0 \(0 -> -1\) ends at"),
        ({"x": np.zeros((3, 1)), "x_indptr": np.zeros(4, int)}, "must hold x or x_indptr"),
        ({"x_indptr": np.zeros(4, int)}, "here.npz must hold x_indices beside x_indptr"),
        (
            {
                "x_indptr": np.zeros(4, int),
                "x_indices": np.zeros(0, int),
                "x_shape": np.array([4, 2]),
            },
            r"x_shape must be \(rows of x_indptr = 3, F\), got \[4, 2\]",
        ),
        ({"x": np.array([[1], [np.nan], [2]])}, "here.npz: x must be finite, got nan in row 1"),
        ({"train_mask": np.ones(3), "train_masks": np.ones((1, 3))}, "must hold train_mask or tr"),
        ({"val_masks": np.ones(3)}, r"key val_masks must have shape \(splits, N\), got \(3,\)"),
        ({"y": np.array([0, -2, 0])}, "here.npz: labels must be class numbers from 0"),
    ],
)
def test_contradictions_name_the_file(arrays, message):
    with pytest.raises(DatasetError, match=message):
        build(**arrays)


@pytest.mark.parametrize("indptr", [[0, 2], [1, 3], [0, 2, 1, 3], [[0, 3]], [], [0.0, 3.0]])
def test_csr_offsets_are_checked(indptr):
    arrays = {"indptr": np.array(indptr), "indices": np.array([0, 0, 0])}
    with pytest.raises(
        DatasetError, match=r"key indptr must rise from 0 to the number of .* \(3\)"
    ):
        graph_from_arrays(arrays, "here.npz", name="toy")


def test_missing_structure_lists_what_is_there():
    with pytest.raises(DatasetError, match="edge_index, or indptr and indices, got x"):
        graph_from_arrays({"x": np.zeros((1, 1))}, "here.npz", name="toy")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_csr_from_dense_round_trip(dtype):
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], dtype)
    sparse = csr_from_dense(dense)
    assert sparse.dtype == dtype
    assert (sparse.to_dense() == dense).all()
    assert csr_from_dense((dense > 0).astype(dtype)).data is None


def test_npz_reads_only_what_is_wanted(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, y=np.arange(3), other=np.array([{}], object))
    assert npz_keys(path) == ["y", "other"]
    assert list(read_npz(path)) == ["y"]


def test_pickled_member_is_refused_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, y=np.array([{}], object))
    with pytest.raises(DatasetError, match=r"a\.npz, key y must be a plain array"):
        read_npz(path)


def test_damaged_member_is_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(3), y=np.arange(10_000))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64 * [255])
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.npz, key y must be a plain array"):
        read_npz(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04rest", b"hello"])
def test_files_that_are_no_archive(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.npz must be an .npz archive, got a damaged"):
        read_npz(path)


def test_wrong_kind_of_numpy_file(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2))
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    with pytest.raises(DatasetError, match=r"got a single array: name it \.npy"):
        read_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", y=np.zeros(2))
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    with pytest.raises(DatasetError, match=r"got an \.npz archive: rename it"):
        read_npy(tmp_path / "b.npy")
    with pytest.raises(DatasetError, match=r"none\.npz does not exist"):
        read_npz(tmp_path / "none.npz")


def test_npy_with_objects_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], object))
    with pytest.raises(DatasetError, match=r"a\.npy must be a readable .npy file without pickles"):
        read_npy(tmp_path / "a.npy")
