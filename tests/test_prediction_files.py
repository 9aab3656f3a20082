"""Predictions and embeddings in files: right, in the order of original ids, whole or not there."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from awkward import awkward_case

import gnn_dist as gd
from gnn_dist.cli import main
from gnn_dist.errors import ConfigError
from gnn_dist.halo.in_order import rows_in_order
from gnn_dist.halo.load import load_shard
from gnn_dist.shard.format import write_partition
from gnn_dist.testing import RanksFailed, run_ranks
from gnn_dist.train import prediction_files
from gnn_dist.train.prediction_files import Origin, check_free, predictions_of, write_rows

ORIGIN = Origin("d", "f", "r", 3, "multiclass")
ARGS = ["--hidden", "8", "--epochs", "2", "--no-tensorboard", "--timeout", "60"]


def in_pieces(world, folders, dtypes):
    """Rows that tell their node, as rank 0 gets them."""
    found = []
    for folder in folders:
        shard = load_shard(folder, world)
        for dtype in dtypes:
            rows = torch.stack([shard.node_id, -shard.node_id], 1).to(dtype)
            ids, num_nodes = shard.node_id, shard.meta.num_nodes
            pieces = rows_in_order(rows, ids, num_nodes, world.transport, piece_bytes=70)
            found.append([(start, piece.float().numpy()) for start, piece in pieces])
            with pytest.raises(ConfigError, match="must have a row for each"):
                list(rows_in_order(rows, ids, num_nodes + 1, world.transport))
    return found


@pytest.mark.mpi
@pytest.mark.parametrize("world_size", [1, 3])
def test_rows_come_in_order_and_in_pieces(world_size, tmp_path):
    cases = [awkward_case(name, 3) for name in ("random partition", "empty part", "single node")]
    for case in cases:
        write_partition(case.graph, case.partition, tmp_path / case.name)
    folders, dtypes = [tmp_path / case.name for case in cases], [torch.float64, torch.bfloat16]
    first, *others = run_ranks(in_pieces, world_size, folders, dtypes)
    for i, pieces in enumerate(first):
        num_nodes = cases[i // 2].graph.num_nodes
        width = 16 if i % 2 == 0 else 4
        assert len(pieces) == -(-num_nodes // (70 // width))
        rows = np.concatenate([rows for _, rows in pieces])
        np.testing.assert_array_equal(rows[:, 0], np.arange(num_nodes))
        np.testing.assert_array_equal(rows[:, 1], -np.arange(num_nodes))
        assert [start for start, _ in pieces] == list(range(0, num_nodes, 70 // width))
    for other in others:
        assert all(len(rows) == 0 for pieces in other for _, rows in pieces)


def write(world, parts, out, file_format, failing):
    shard = load_shard(parts, world)
    task = gd.make_task(shard, 0, world)
    rows = shard.node_id[:, None] * torch.tensor([[1.0, -1.0, 2.0]])
    prediction_files.rows_in_order.__kwdefaults__["piece_bytes"] = 100  # in this process alone
    if failing and world.is_main:
        kind = prediction_files._FILES[file_format]
        real = kind.write

        def full(self, start, rows):
            if start > 10:
                raise OSError(28, "No space left on device")
            real(self, start, rows)

        kind.write = full
    write_rows(out, rows, shard, world, file_format=file_format, origin=ORIGIN, task=task)


@pytest.fixture
def parts(tmp_path):
    case = awkward_case("random partition", 2)
    write_partition(case.graph, case.partition, tmp_path / "parts")
    return tmp_path / "parts"


def test_files_are_replaced_when_they_are_whole(parts, tmp_path):
    out = tmp_path / "new" / "predictions"
    run_ranks(write, 2, parts, out, "npy", False)
    values = np.arange(30.0)[:, None] * [[1.0, -1.0, 2.0]]
    np.testing.assert_array_equal(np.load(out / "class.npy"), np.where(np.arange(30) == 0, 0, 2))
    expected = torch.from_numpy(values).float().softmax(1).numpy()
    np.testing.assert_allclose(np.load(out / "probabilities.npy"), expected, rtol=1e-6)
    meta = json.loads((out / "meta.json").read_text())
    assert meta["arrays"]["class"] == {"file": "class.npy", "dtype": "int64", "shape": [30]}
    assert (meta["num_nodes"], meta["epoch"], meta["what"]) == (30, 3, "multiclass")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(RanksFailed, match="No space left on device") as error:
        run_ranks(write, 2, parts, out, "npy", True)
    assert f"rank 0 failed while writing {out}" in str(error.value)  # what rank 1 says
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["predictions"]


def test_parquet_holds_the_same(parts, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "predictions"
    run_ranks(write, 1, parts, out, "parquet", False)
    table = parquet.read_table(out / "nodes.parquet")
    assert table.column_names == ["node", "class", "probabilities"]
    assert parquet.ParquetFile(out / "nodes.parquet").num_row_groups > 1
    assert table["node"].to_pylist() == list(range(30))
    assert table["class"].to_pylist() == [0] + 29 * [2]
    np.testing.assert_allclose(np.stack(table["probabilities"].to_numpy()).sum(1), 1, rtol=1e-5)


def test_what_is_in_the_way_is_not_replaced(tmp_path, monkeypatch):
    out = tmp_path / "predictions"
    check_free(out, "npy", overwrite=False)
    out.mkdir()
    with pytest.raises(ConfigError, match="holds no predictions"):
        check_free(out, "npy", overwrite=True)
    (out / "meta.json").touch()
    check_free(out, "npy", overwrite=True)
    with pytest.raises(ConfigError, match="--overwrite"):
        check_free(out, "npy", overwrite=False)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"gnn-dist\[parquet\]"):
        check_free(tmp_path / "other", "parquet", overwrite=False)


def test_outputs_become_classes_labels_or_numbers():
    output = torch.tensor([[1.0, -2.0], [-1.0, 3.0]])

    def names(kind, y):
        found = predictions_of(output[:, : max(1, y.dim())], SimpleNamespace(kind=kind, y=y))
        return {name: (str(table.dtype), tuple(table.shape)) for name, table in found.items()}

    single, several = torch.zeros(3), torch.zeros(3, 2)
    assert names("multilabel", several) == {
        "labels": ("torch.bool", (2, 2)),
        "probabilities": ("torch.float32", (2, 2)),
    }
    assert names("regression", single) == {"values": ("torch.float32", (2,))}
    assert names("regression", several) == {"values": ("torch.float32", (2, 2))}
    task = SimpleNamespace(kind="multiclass", y=single)
    assert predictions_of(output, task)["class"].tolist() == [0, 1]
    task = SimpleNamespace(kind="multilabel", y=several)
    assert predictions_of(output, task)["labels"].tolist() == [[True, False], [False, True]]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = awkward_case("random partition", 3)
    write_partition(case.graph, case.partition, "p")
    words = ["train", "p", "--out", "r", *ARGS, "--mode", "minibatch", "--batch-size", "8"]
    assert main([*words, "--batch-norm", "--ranks", "1"]) == 0
    return tmp_path / "r"


def test_the_command_writes_what_evaluate_scores(run, tmp_path, capfd):
    assert main(["evaluate", "r", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    assert main(["infer", "r", "--embeddings"]) == 0
    assert "predictions of 30 nodes: r/predictions" in capfd.readouterr().out
    small = ["--batch-size", "7", "--halo-memory", "64"]
    words = ["infer", "r", "--ranks", "2", "--embeddings", "--out", "two", *small]
    assert main(words) == 0
    graph = awkward_case("random partition", 3).graph
    guess = np.load("r/predictions/class.npy")
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        np.testing.assert_allclose((guess == graph.y)[mask].mean(), scores[split], rtol=1e-6)
    for name in ("predictions/class", "predictions/probabilities", "embeddings/embeddings"):
        one, two = (np.load(tmp_path / out / f"{name}.npy") for out in ("r", "two"))
        assert len(one) == 30
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    assert one.shape == (30, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--overwrite"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--halo-memory", "much"], "a size must be a number"),
        (["--ranks", "4"], "4 ranks for 3 parts"),
    ],
)
def test_wrong_words_are_refused(words, message, run, capfd):
    (run / "predictions").mkdir()
    (run / "predictions" / "meta.json").touch()
    assert main(["infer", "r", *words]) == 2
    assert message in capfd.readouterr().err
