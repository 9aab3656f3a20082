"""The command line as a user meets it: what works, and every refusal with exit code 2."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gnn_dist as gd
from gnn_dist.cli import main
from gnn_dist.datasets import list_datasets

ROOT = Path(__file__).parents[1]
ARGS = ["--no-tensorboard", "--hidden", "8", "--epochs", "3"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty folder, with no data about and no launcher."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GNN_DIST_DATA", raising=False)


def gnn_dist(*words, **env):
    """Run the command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "gnn_dist", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
    )


def refused(capfd, *words):
    """Return the one line that a refusal prints."""
    try:
        code = main([str(word) for word in words])
    except SystemExit as exit_:  # the parser's own refusals
        code = exit_.code
    out, err = capfd.readouterr()
    assert code == 2, err
    assert "Traceback" not in err
    assert out == ""
    return err.strip()


def ring(num_nodes=12, **changes):
    ids = np.arange(num_nodes)
    fields = {
        "x": np.random.default_rng(0).standard_normal((num_nodes, 4)),
        "y": ids % 3,
        "train_mask": ids % 4 < 2,
        "val_mask": ids % 4 == 2,
        "test_mask": ids % 4 == 3,
        "name": "ring",
    }
    return gd.graph_from_edges(
        ids, (ids + 1) % num_nodes, num_nodes=num_nodes, symmetrize=True, **{**fields, **changes}
    )


def write_parts(graph, num_parts=3, name="parts"):
    assignment = np.arange(graph.num_nodes) % num_parts
    gd.write_partition(graph, gd.Partition(assignment, num_parts), name)
    return name


def rows_of(run):
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


def test_datasets_lists_what_there_is(capsys):
    assert main(["datasets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "N", "E", "F", "C", "source", "licence"]
    assert len(lines) == 1 + len(list_datasets())
    assert main(["datasets", "--json"]) == 0
    by_name = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert by_name["cora"]["num_nodes"] == 2708


def test_partition_inspect_train_evaluate(tmp_path, capfd):
    assert main(["partition", "grid:rows=10,cols=10", "--parts", "4", "--out", "p/grid"]) == 0
    report = capfd.readouterr().out
    for word in ("edge cut", "replication factor", "max / mean", "part  nodes"):
        assert word in report
    assert main(["inspect", "p/grid", "--json"]) == 0
    values = json.loads(capfd.readouterr().out)
    assert values["num_parts"] == 4
    assert set(values["quality"]) >= {"edge_cut", "replication_factor", "num_halo", "balance"}
    assert "arrays" not in values
    assert main(["train", "p/grid", "--out", "runs/a", *ARGS, "model=gcn"]) == 0
    assert "best epoch" in capfd.readouterr().out
    assert main(["evaluate", "runs/a", "--json"]) == 0
    scores = json.loads(capfd.readouterr().out)
    summary = json.loads((tmp_path / "runs/a/summary.json").read_text())
    assert scores["metric"] == "accuracy"
    assert scores["test"] == summary["test_metric_at_best"]
    assert main(["evaluate", "runs/a"]) == 0
    assert f"{scores['test']:.4f}" in capfd.readouterr().out


def test_training_a_dataset_partitions_it_first_and_only_once(tmp_path, capfd):
    words = ["train", "grid:rows=8,cols=8", "--parts", "2", "--balance", "nodes", *ARGS]
    assert main([*words, "--out", "runs/a"]) == 0
    assert "partitioning grid:rows=8,cols=8 in 2 parts" in capfd.readouterr().err
    [folder] = (tmp_path / "parts").iterdir()
    assert main([*words, "--out", "runs/b"]) == 0
    assert f"using the partition in parts/{folder.name}" in capfd.readouterr().err
    assert main(["train", "grid:rows=8,cols=8", "--method", "random", *ARGS]) == 0
    assert len(list((tmp_path / "parts").iterdir())) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_ranks_of_this_machine_give_the_curve_of_one_process(tmp_path):
    write_parts(ring())
    for ranks in (1, 3):
        done = gnn_dist("train", "parts", "--ranks", ranks, "--out", f"runs/{ranks}", *ARGS)
        assert done.returncode == 0, done.stderr
    one, three = ([row["loss"] for row in rows_of(f"runs/{ranks}")] for ranks in (1, 3))
    np.testing.assert_allclose(one, three, rtol=1e-5)
    done = gnn_dist("evaluate", "runs/3", "--ranks", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metric"] == "accuracy"


def test_a_yaml_file_and_overrides(tmp_path, capfd):
    write_parts(ring())
    (tmp_path / "run.yaml").write_text(
        "dataset: parts\nmodel: gin\nepochs: 2\ntensorboard: false\n"
    )
    assert main(["train", "--config", "run.yaml", "hidden=5", "--out", "runs/a"]) == 0
    config = (tmp_path / "runs/a/config.yaml").read_text()
    assert "model: gin" in config
    assert "hidden: 5" in config
    # The configuration that a run leaves starts the same run again.
    words = ["train", "--config", "runs/a/config.yaml", "--out", "runs/b"]
    assert main(words) == 0
    assert (tmp_path / "runs/a/metrics.jsonl").read_text().count("\n") == 2


def test_resume_goes_on_to_more_epochs(tmp_path):
    write_parts(ring())
    assert main(["train", "parts", "--out", "runs/a", *ARGS]) == 0
    assert main(["train", "--resume", "runs/a", "--epochs", "5"]) == 0
    assert [row["epoch"] for row in rows_of("runs/a")] == [0, 1, 2, 3, 4]


def test_a_run_that_never_reached_a_checkpoint_can_be_resumed(tmp_path):
    write_parts(ring())
    assert main(["train", "parts", "--out", "r", *ARGS]) == 0
    for name in ("best.pt", "last.pt"):
        assert (tmp_path / "r/checkpoint" / name).exists()
    # What is there when a run is killed in its first epoch: a checkpoint of epoch 0.
    assert main(["train", "parts", "--out", "first", *ARGS, "--checkpoint-every", "1000"]) == 0
    assert main(["train", "--resume", "first", "--epochs", "4"]) == 0
    assert [row["epoch"] for row in rows_of("first")] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("precision: fp16", "fp16"),
        ("hidden: abc", "abc"),
        ("metric: foo", "foo"),
        ("verify: maybe", "verify must be true or false"),
        ("colour: red", "--colour"),
    ],
)
def test_a_damaged_configuration_of_a_run_is_refused(change, message, tmp_path, capfd):
    write_parts(ring())
    assert main(["train", "parts", "--out", "r", *ARGS]) == 0
    capfd.readouterr()
    config = tmp_path / "r/config.yaml"
    key = change.split(":")[0]
    lines = [line for line in config.read_text().splitlines() if not line.startswith(f"{key}:")]
    config.write_text("\n".join([*lines, change]) + "\n")
    assert message in refused(capfd, "evaluate", "r")
    assert message in refused(capfd, "train", "--resume", "r")


def test_no_validation_nodes(tmp_path, capfd):
    write_parts(ring(val_mask=np.zeros(12, bool)))
    assert main(["train", "parts", "--out", "r", *ARGS]) == 0
    assert "val accuracy n/a" in capfd.readouterr().out
    assert json.loads((tmp_path / "r/summary.json").read_text())["val_metric_at_best"] is None
    assert main(["evaluate", "r", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["val"] is None


def test_a_reader_that_goes_away(tmp_path):
    command = f"{sys.executable} -m gnn_dist datasets | true"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=env, timeout=60)
    assert "Traceback" not in done.stderr


def test_an_own_graph_from_files(tmp_path, capfd):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/edges.csv").write_text("src,dst\n0,1\n1,2\n2,3\n3,4\n4,0\n")
    np.save("mine/x.npy", np.ones((6, 2)))  # node 5 has no edge
    np.save("mine/y.npy", np.array([0, 1, 0, 1, 0, 1]))
    np.save("mine/train_mask.npy", np.array([1, 1, 0, 0, 0, 1]))  # 0 and 1 serve as booleans
    assert main(["partition", "mine", "--parts", "2", "--out", "p"]) == 0
    assert "6 nodes, 5 edges" in capfd.readouterr().out
    assert main(["train", "p", "--out", "r", *ARGS]) == 0


def test_two_graphs_of_one_file_name_are_two_partitions(tmp_path, capfd):
    for name, size in (("a", 5), ("b", 7)):
        (tmp_path / name).mkdir()
        edges = "".join(f"{i},{(i + 1) % size}\n" for i in range(size))
        (tmp_path / name / "edges.csv").write_text(edges)
        np.save(tmp_path / name / "edges.x.npy", np.ones((size, 2)))
        np.save(tmp_path / name / "edges.y.npy", np.arange(size) % 2)
        assert main(["train", f"{name}/edges.csv", "--out", f"r/{name}", *ARGS]) == 0
    assert "using the partition" not in capfd.readouterr().err
    np.save(tmp_path / "b/edges.y.npy", np.zeros(7, int))  # edited: partitioned again
    assert main(["train", "b/edges.csv", "--out", "r/c", *ARGS]) == 0
    assert "using the partition" not in capfd.readouterr().err
    assert main(["train", "b/edges.csv", "--out", "r/d", *ARGS]) == 0
    assert "using the partition" in capfd.readouterr().err
    assert len(list((tmp_path / "parts").iterdir())) == 3


@pytest.mark.parametrize("parts", [1, 3])
def test_an_empty_part_and_a_rank_without_training_nodes_work(parts, capfd):
    graph = ring()
    train = np.arange(12) == 0
    graph = graph.replace(train_mask=train, val_mask=~train, test_mask=~train)
    gd.write_partition(graph, gd.Partition(np.arange(12) % 2, 3), "parts")
    done = gnn_dist("train", "parts", "--ranks", parts, "--out", "r", *ARGS)
    assert done.returncode == 0, done.stderr


def test_without_masks_a_split_is_made(capfd):
    graph = ring(200, train_mask=None, val_mask=None, test_mask=None)
    write_parts(graph)
    assert main(["train", "parts", "--out", "r", "--split", "7", *ARGS]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "crra"], "did you mean 'cora'?"),
        (["train"], "a dataset must be named"),
        (["partition", "grid", "--parts", "0"], "got 0"),
        (["partition", "grid:rows=3,cols=3", "--parts", "10"], "--parts"),
        (["partition", "grid", "--parts", "2", "--method", "metiss"], "metiss"),
        (["partition", "grid", "--parts", "x"], "--parts"),
        (["inspect", "nowhere"], "nowhere does not exist"),
        (["train", "nowhere.csv"], "nowhere.csv"),
        (["evaluate", "nowhere"], "nowhere"),
        (["train", "grid", "batch_norm=maybe"], "batch_norm must be true or false"),
        (["train", "grid", "--config", "none.yaml"], "none.yaml cannot be read"),
        (["train", "grid", "--hiden", "3"], "--hidden"),
        (["train", "grid", "lr=abc"], "abc"),
        (["train", "grid", "--epochs", "0"], "epochs must be at least 1"),
        (["train", "grid", "--ranks", "-1"], "must not be negative"),
        (["trian", "grid"], "trian"),
        ([], "Missing subcommand"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words_are_refused(words, message, capfd):
    assert message in refused(capfd, *words)


@pytest.mark.parametrize(
    ("fields", "words", "message"),
    [
        ({"y": None, "train_mask": None, "val_mask": None, "test_mask": None}, [], "has no labels"),
        ({"x": None}, [], "has no features"),
        ({"train_mask": np.zeros(12, bool)}, [], "has no training node"),
        ({}, ["--split", "1"], "split must lie in 0..0"),
        ({}, ["--ranks", "4"], "4 ranks for 3 parts"),
        ({}, ["--model", "gat", "--heads", "3"], "heads must divide hidden=8"),
        ({}, ["--backend", "mpi", "--resume", "none"], "none/config.yaml cannot be read"),
        ({"y": np.eye(12, 3, dtype=bool)}, ["--metric", "accuracy"], "one label a node"),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else None,
)
def test_a_graph_that_cannot_be_trained_is_refused(fields, words, message, capfd):
    write_parts(ring(**fields))
    assert message in refused(capfd, "train", "parts", "--out", "r", *ARGS, *words)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda p: (p / "part-0001/x.npy").unlink(), "x.npy is missing"),
        (lambda p: (p / "part-0001/y.npy").write_bytes(b"junk"), "y.npy is damaged"),
        (lambda p: (p / "part-0002").rename(p / "gone"), "part-0002 is missing"),
        (
            lambda p: (p / "meta.json").write_text(
                (p / "meta.json").read_text().replace('"format_version": 1', '"format_version": 2')
            ),
            "format version 1, got 2",
        ),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_damaged_folder_is_refused(break_it, message, ranks, tmp_path):
    write_parts(ring())
    break_it(tmp_path / "parts")
    done = gnn_dist("train", "parts", "--ranks", ranks, "--out", "r", *ARGS)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r").exists()


USER_DATA = {
    "nan features": ({"x": np.array([[1.0], [np.nan], [1.0]])}, "x must be finite"),
    "label below -1": ({"y": np.array([0, -5, 1])}, "got -5 at node 1"),
    "edge to nowhere": ({"edge_index": np.array([[0, 7], [1, 2]])}, "7"),
    "mask of another length": ({"train_mask": np.array([True])}, "train_mask must have shape"),
    "mask of twos": ({"train_mask": np.array([0, 1, 2])}, "train_mask must hold booleans"),
    "unlabelled training node": (
        {"y": np.array([0, -1, 1]), "train_mask": np.array([True, True, False])},
        "train_mask must hold labelled nodes only",
    ),
}


@pytest.mark.parametrize("name", USER_DATA)
def test_user_data_with_a_fault_is_refused(name, capfd):
    fields, message = USER_DATA[name]
    base = {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.ones((3, 1)), "y": np.arange(3) % 2}
    np.savez("mine.npz", **{**base, **fields})
    assert message in refused(capfd, "partition", "mine.npz", "--parts", "2")


def test_ranks_inside_a_launched_process_are_refused(capfd, monkeypatch):
    write_parts(ring())
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    message = refused(capfd, "train", "parts", "--ranks", "2")
    assert "one of 2 that torchrun has started" in message


def test_only_rank_0_says_what_is_wrong(capfd, monkeypatch):
    for rank, expected in (("0", "cora"), ("1", "")):
        for name, value in {"RANK": rank, "WORLD_SIZE": "2"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "1")
        assert main(["inspect", "nowhere/cora"]) == 2
        assert expected in capfd.readouterr().err


def test_a_port_in_use_is_refused():
    import socket

    write_parts(ring())
    with socket.create_server(("127.0.0.1", 0)) as busy:
        env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        port = str(busy.getsockname()[1])
        done = gnn_dist("train", "parts", "--out", "r", *ARGS, **env, MASTER_PORT=port)
    assert done.returncode == 2, done.stderr
    assert port in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["--help"], ["train", "--help"], ["train", "parts", "--ranks", "9"], ["inspect", "nowhere"]],
    ids=" ".join,
)
def test_help_and_refusals_are_quick(words):
    write_parts(ring())
    gnn_dist(*words)  # once, so that byte code is there
    seconds = []
    for _ in range(3):
        start = cpu_seconds()
        gnn_dist(*words)
        seconds.append(cpu_seconds() - start)
    assert min(seconds) < 0.7


def cpu_seconds():
    """Of processes that have ended: by the clock other tests would count, too."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
