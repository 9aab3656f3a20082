"""The scripts in `examples/` run on two ranks, and differ little from those for one machine."""

import difflib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import gnn_dist as gd
from gnn_dist.launch.local import launch_ranks

EXAMPLES = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
MOST_LINES = 4
# What each prints at its end, and more than which it should be.
RESULTS = {"link_prediction": ("test hits@10", 0.6)}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A small graph of which neighbours and features tell the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    src = rng.integers(0, 300, 2400)
    same = [rng.choice(np.flatnonzero(y == y[s])) for s in src]
    dst = np.where(rng.random(2400) < 0.8, same, rng.integers(0, 300, 2400))
    x = rng.standard_normal((300, 1433)).astype(np.float32)
    x[:, :4] += 2 * np.eye(4)[y]
    third = np.arange(300) % 3
    masks = {f"{name}_mask": third == i for i, name in enumerate(("train", "val", "test"))}
    graph = gd.graph_from_edges(src, dst, num_nodes=300, x=x, y=y, **masks)
    folder = tmp_path_factory.mktemp("examples") / "parts"
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_on_two_ranks(name, parts, capfd):
    if name.startswith("dgl"):
        pytest.importorskip("dgl")
    script = [sys.executable, str(EXAMPLES / f"{name}.py")]
    assert launch_ranks([str(parts)], 2, backend="gloo", command=script) == 0
    metric, least = RESULTS.get(name, ("test accuracy", 0.5))
    values = re.findall(rf"{metric} (\d\.\d+)", capfd.readouterr().out)
    assert len(set(values)) == 1
    assert float(values[0]) > least


@pytest.mark.parametrize("name", [path.stem for path in (EXAMPLES / "one_machine").glob("*.py")])
def test_four_lines_differ_from_the_script_for_one_machine(name):
    one, many = (
        path.read_text().partition('"""\n\n')[2].splitlines()
        for path in (EXAMPLES / "one_machine" / f"{name}.py", EXAMPLES / f"{name}.py")
    )
    changed = [line for line in difflib.ndiff(one, many) if line.startswith("+ ")]
    assert len(changed) <= MOST_LINES
    assert len(many) - len(one) <= MOST_LINES
