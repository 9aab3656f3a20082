"""Numbers to predict, from a graph to a shard and back from other systems' folders."""

import numpy as np
import pytest
import torch

import gnn_dist as gd
from gnn_dist.comm.world import World
from gnn_dist.convert import convert_folder
from gnn_dist.convert.own_folder import read_own
from gnn_dist.errors import GraphError
from gnn_dist.graph import Graph
from gnn_dist.interop import graph_to_pyg
from gnn_dist.shard.format import read_meta

NAN = float("nan")


def ring(y, **fields):
    ids = np.arange(len(y))
    return gd.graph_from_edges(ids, (ids + 1) % len(y), y=y, regression=True, **fields)


@pytest.mark.parametrize(
    ("y", "dtype", "shape"),
    [
        (np.array([1.0, 2.0, 3.0], np.float32), "float32", (3,)),
        (np.array([1, 2, 3]), "float64", (3,)),
        (np.array([[0.5], [NAN], [2.5]]), "float64", (3,)),
        (np.array([[0.5, 1], [NAN, 3], [2.5, 4]]), "float64", (3, 2)),
    ],
)
def test_targets_keep_their_values(y, dtype, shape):
    graph = ring(y)
    assert (graph.task, graph.num_classes) == ("regression", None)
    assert (graph.y.dtype, graph.y.shape) == (dtype, shape)
    np.testing.assert_array_equal(graph.y, y.reshape(shape))


@pytest.mark.parametrize(
    ("y", "fields", "message"),
    [
        ([0.5, np.inf, 1.0], {}, "finite, or NaN for none, got inf at 1"),
        (["a", "b", "c"], {}, "numbers to predict"),
        ([0.5, NAN, 1.0], {"val_mask": [True, True, False]}, "labelled nodes only, got 1"),
    ],
)
def test_bad_targets_are_refused(y, fields, message):
    with pytest.raises(GraphError, match=message):
        ring(np.array(y), **fields)


def test_a_floating_dtype_alone_means_classes():
    graph = Graph(np.zeros(4, np.int64), np.zeros(0, np.int32), y=np.array([0.0, 2.0, NAN]))
    assert (graph.task, graph.num_classes, graph.y.tolist()) == ("multiclass", 3, [0, 2, -1])
    with pytest.raises(GraphError, match="regression=True"):
        graph.replace(y=np.array([0.0, 0.5, 1.0]))
    assert graph.replace(y=np.array([0.0, 0.5, 1.0]), regression=True).num_classes is None


@pytest.mark.parametrize("cut", ["edge", "vertex"])
def test_partition_folders_hold_targets(cut, tmp_path):
    y = np.arange(10.0).reshape(5, 2) / 3
    graph = ring(y)
    partition = gd.Partition([0, 2, 0, 2, 2], 3)  # the part between them is empty
    if cut == "vertex":
        partition = gd.partition_graph(graph, 2, "libra")
    gd.write_partition(graph, partition, tmp_path / "parts")
    meta = read_meta(tmp_path / "parts")
    assert (meta.task, meta.num_classes) == ("regression", None)
    shard = gd.load_shard(tmp_path / "parts", World.single())
    assert shard.y.dtype == torch.float64
    np.testing.assert_array_equal(shard.y, y[shard.node_id])


def test_pyg_folders_keep_targets_of_whole_numbers(tmp_path):
    graph = ring(np.array([3.0, 1.0, 2.0, 9.0]))
    gd.write_partition(graph, gd.Partition([0, 1, 0, 1], 2), tmp_path / "ours")
    convert_folder(tmp_path / "ours", "pyg", tmp_path / "pyg")
    convert_folder(tmp_path / "pyg", "gnn-dist", tmp_path / "back")
    back = read_own(tmp_path / "back").graph()
    assert back.task == "regression"
    np.testing.assert_array_equal(back.y, graph.y)


def test_pyg_data_and_folders_of_ones_own(tmp_path):
    graph = ring(np.array([0.25, 1.5, NAN]), x=np.eye(3))
    data = graph_to_pyg(graph)
    np.testing.assert_array_equal(gd.graph_from_pyg(data, regression=True).y, graph.y)
    np.save(tmp_path / "edges.npy", np.stack(graph.edges(), 1))
    np.save(tmp_path / "y.npy", graph.y)
    for options in ("", ":symmetric=true"):
        end = f"{options},regression=true" if options else ":regression=true"
        loaded = gd.load_dataset(f"{tmp_path}{end}")
        assert loaded.task == "regression"
        np.testing.assert_array_equal(loaded.y, graph.y)
