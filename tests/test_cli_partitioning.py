"""The commands partition and generate: constraints, refinement, graphs larger than memory."""

import json
from typing import get_args

import numpy as np
import pytest

from gnn_dist.cli import main
from gnn_dist.cli.partitioning import Method, PartitionCommand, default_folder
from gnn_dist.errors import ShardFormatError
from gnn_dist.partitioners import available


def quality(folder):
    return json.loads((folder / "meta.json").read_text())["quality"]


def test_every_method_can_be_named():
    assert sorted(get_args(Method)) == sorted(available())


def test_options_reach_the_partitioner(tmp_path):
    out = tmp_path / "p"
    words = ["partition", "grid:rows=12,cols=12", "--parts", "3", "--method", "fennel"]
    words += ["--balance", "nodes,edges:0.2", "--imbalance", "0.1", "--part-weights", "2,1,1"]
    words += ["--refine", "--method-options", "passes=7,objective=halo", "--out", str(out)]
    assert main(words) == 0
    options = json.loads((out / "meta.json").read_text())["partitioner"]["options"]
    wanted = {"balance": "nodes,edges:0.2", "imbalance": 0.1, "part_weights": [2.0, 1.0, 1.0]}
    assert wanted.items() <= options.items()
    assert {"passes": 7, "objective": "halo", "refine": True}.items() <= options.items()
    assert quality(out)["num_nodes"][0] > 60


def test_machines(tmp_path):
    words = ["partition", "grid:rows=8,cols=8", "--parts", "4", "--machines", "2"]
    assert main([*words, "--method", "metis", "--out", str(tmp_path / "p")]) == 0
    assert json.loads((tmp_path / "p/meta.json").read_text())["partitioner"]["options"]["machines"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--balance", "nodse"], "did you mean 'nodes'"),
        (["--part-weights", "1,x"], "part_weights must be numbers with commas between"),
        (["--part-weights", "1,1,1"], "one share for each of 2 parts, got 3"),
        (["--method-options", "passes"], "method_options must be name=value"),
        (["--method", "metis", "--method-options", "pases=1"], "has no option 'pases'"),
        (["--method", "random", "--balance", "nodes"], "'random' has no option 'balance'"),
        (["--symmetrize"], "--symmetrize goes with --memory-limit"),
        (["--id-dtype", "int64"], "--id-dtype goes with --memory-limit"),
        (["--method", "ldg", "--method-options", "refine=maybe"], "refine must be true or false"),
        (["--memory-limit", "1G"], "method 'best' needs the graph in memory"),
        (["--memory-limit", "lots", "--method", "ldg"], "lots"),
    ],
)
def test_wrong_options_are_one_sentence(tmp_path, capsys, words, message):
    base = ["partition", "grid:rows=4,cols=4", "--parts", "2", "--out", str(tmp_path / "p")]
    assert main([*base, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("method", ["contiguous", "fennel", "spring", "metis-stream"])
def test_a_generated_file_is_partitioned_out_of_core(tmp_path, method):
    file = tmp_path / "edges.bin"
    assert main(["generate", "rmat:scale=10,degree=8", "--out", str(file)]) == 0
    assert file.stat().st_size == 8 * 1024 * 8
    words = ["partition", str(file), "--parts", "4", "--method", method, "--memory-limit", "1G"]
    assert main([*words, "--num-nodes", "1024", "--refine", "--out", str(tmp_path / "p")]) == 0
    found = quality(tmp_path / "p")
    assert sum(found["num_edges"]) == 8 * 1024
    assert sum(found["num_nodes"]) == 1024
    ids = [np.load(tmp_path / f"p/part-000{p}/node_id.npy") for p in range(4)]
    assert sorted(np.concatenate(ids).tolist()) == list(range(1024))
    assert not list(tmp_path.glob(".p.*"))


@pytest.mark.parametrize("value", ["false", "False", "true"])
def test_truth_values_are_what_they_say(value):
    options = PartitionCommand(parts=2, method_options=f"refine={value}").options()
    assert options["refine"] is (value == "true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--parts", "65"], "num_parts must be between 1 and num_nodes=64, got 65"),
        (["--parts", "2", "--machines", "3"], "machines must be at most the number of parts"),
        (["--parts", "2", "--part-weights", "1,1,1"], "one share for each of 2 parts, got 3"),
        (["--parts", "2", "--balance", "nodes,{folder}/w.npy"], "one integer for each of 64"),
    ],
)
def test_wrong_options_are_found_before_edges_are_sorted(tmp_path, capsys, words, message):
    np.save(tmp_path / "w.npy", np.ones(3, np.int64))
    words = [word.format(folder=tmp_path) for word in words]
    base = ["partition", "rmat:scale=6", "--method", "ldg", "--memory-limit", "2G"]
    assert main([*base, *words, "--out", str(tmp_path / "p")]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]


def test_an_assignment_by_other_weights_is_not_used_again(tmp_path, monkeypatch):
    weights, out = tmp_path / "w.npy", tmp_path / "p"
    words = ["partition", "rmat:scale=6", "--method", "ldg", "--memory-limit", "2G"]
    words += ["--parts", "2", "--balance", str(weights), "--out", str(out)]
    np.save(weights, np.arange(64) < 4)

    def fail(*args, **kwargs):
        raise ShardFormatError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("gnn_dist.out_of_core.pipeline.write_partition", fail)
        assert main(words) == 2
    np.save(weights, (np.arange(64) >= 60).astype(np.int16))
    assert main(words) == 0
    assert main([*words[:-1], str(tmp_path / "anew")]) == 0
    made = [np.load(tmp_path / f"{name}/part-0000/node_id.npy").tolist() for name in ("p", "anew")]
    assert made[0] == made[1]


def test_the_default_folder_tells_weights_apart(tmp_path):
    def folder():
        command = PartitionCommand(parts=4, balance=str(tmp_path / "w.npy"))
        return default_folder("cora", 4, command).name

    np.save(tmp_path / "w.npy", np.ones(4, np.int64))
    first = folder()
    assert folder() == first
    np.save(tmp_path / "w.npy", np.ones(5, np.int64))
    assert folder() != first


def test_the_default_folder_tells_options_apart():
    def folder(**options):
        return default_folder("cora", 4, PartitionCommand(parts=4, **options)).name

    assert folder() == "cora-4-best"
    assert folder(method="metis", balance="nodes") == "cora-4-metis-balance_nodes"
    assert folder(method_options="passes=2") != folder(method_options="passes=3")
