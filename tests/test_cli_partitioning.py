"""The commands partition and generate: constraints, refinement, graphs larger than memory."""

import json
from typing import get_args

import numpy as np
import pytest

from gnn_dist.cli import main
from gnn_dist.cli.partitioning import Method, PartitionCommand, default_folder
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


def test_the_default_folder_tells_options_apart():
    def folder(**options):
        return default_folder("cora", 4, PartitionCommand(parts=4, **options)).name

    assert folder() == "cora-4-best"
    assert folder(method="metis", balance="nodes") == "cora-4-metis-balance_nodes"
    assert folder(method_options="passes=2") != folder(method_options="passes=3")
