"""Code in documents and docstrings runs."""

import doctest
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gnn_dist as gd
from gnn_dist.testing import run_ranks

ROOT = Path(__file__).parents[1]
WITH_DOCTESTS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("gnn_dist", "gnn_dist/partitioners", "gnn_dist/datasets")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if ">>> " in path.read_text() and path.name != "__main__.py"
]


@pytest.mark.parametrize("name", sorted(set(WITH_DOCTESTS)))
def test_docstring_examples(name):
    module = importlib.import_module(name.removesuffix(".__init__"))
    failures, tried = doctest.testmod(module)
    assert tried > 0
    assert failures == 0


def readme_lines(world, folder, code):
    """Run the README's Python block, its names filled in, as one of several ranks."""
    import torch
    from torch_geometric.nn import GraphSAGE

    code = code.replace("import gnn_dist as gd\n", "").replace("parts/cora", folder)
    names = {
        "gd": SimpleNamespace(
            World=SimpleNamespace(from_env=lambda: world),
            load_shard=gd.load_shard,
            make_task=gd.make_task,
            node_loss=gd.node_loss,
            parallelize=gd.parallelize,
        ),
        "MyPyGModel": lambda: GraphSAGE(2, 8, 2, 4, dropout=0.2),
    }
    torch.manual_seed(0)
    exec(code, names)
    shard = names["shard"]
    with torch.no_grad():
        logits = names["model"].eval()(shard.x, shard.edge_index)
    right = (logits.argmax(1) == shard.y).sum().view(1)
    world.transport.all_reduce(right).wait()
    return int(right) / shard.meta.num_nodes


def test_the_readmes_python_block(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    graph = gd.load_dataset("grid:rows=12,cols=12")
    ones = [True] * graph.num_nodes
    graph = graph.replace(train_mask=ones)
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), tmp_path / "parts")
    accuracy = run_ranks(readme_lines, 2, str(tmp_path / "parts"), code)
    assert accuracy[0] == accuracy[1] > 0.8


def python_page(world, folder, runs, blocks):
    """Run the blocks of docs/python.md one after the other, as one of several ranks."""
    import torch

    from gnn_dist.estimators import nodes

    nodes.world_of_process = lambda: world
    gd.World.from_env = lambda: world
    torch.manual_seed(0)
    names = {}
    for block in blocks:
        exec(block.replace("parts/cora", folder).replace("runs/", f"{runs}/"), names)
    return names["accuracy"], names["labels"], names["summary"]["epochs"], len(names["mine"])


def test_the_page_on_python(tmp_path):
    pytest.importorskip("sklearn")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(blocks) == 7
    graph = gd.load_dataset("grid:rows=12,cols=12")
    place = np.arange(144) % 3
    graph = graph.replace(train_mask=place == 0, val_mask=place == 1, test_mask=place == 2)
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), tmp_path / "parts")
    first, second = run_ranks(python_page, 2, str(tmp_path / "parts"), str(tmp_path), blocks)
    assert first[0] == second[0] > 0.6
    np.testing.assert_array_equal(first[1], second[1])
    assert 10 < first[2] == second[2] < 200  # the callback ended it
    assert first[3] + second[3] == 144
    assert (tmp_path / "mine" / "metrics.jsonl").read_text().count("\n") == 20


def lines_of_embeddings(world, folder, code):
    """Run the blocks of a page one after the other, as one of several ranks."""
    import torch

    checkpoint = str(Path(folder).parent / "checkpoint.pt")
    code = code.replace("parts/cora", folder).replace("checkpoint.pt", checkpoint)
    code = code.replace("gd.World.from_env()", "the_world")
    names = {"the_world": world, "__name__": "page"}
    torch.manual_seed(0)
    exec(code, names)
    return float(names["loss"]), float(
        (names["logits"].argmax(1) == names["shard"].y).double().mean()
    )


def test_the_blocks_about_embeddings(tmp_path):
    text = (ROOT / "docs" / "embeddings.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    graph = gd.load_dataset("grid:rows=12,cols=12")
    graph = graph.replace(x=None, train_mask=[True] * graph.num_nodes)
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), tmp_path / "parts")
    ranks = run_ranks(lines_of_embeddings, 2, str(tmp_path / "parts"), "\n".join(blocks))
    assert ranks[0][0] > 0.0 == ranks[1][0]  # rank 1 has no pairs
    assert all(accuracy > 0.8 for _, accuracy in ranks)


def test_the_readmes_commands_exist():
    """Every option that the README names is one that the parser knows."""
    from gnn_dist.cli import commands

    text = (ROOT / "README.md").read_text()
    fields = {
        name.replace("_", "-")
        for command in (
            commands.Train,
            commands.PartitionCommand,
            commands.Evaluate,
            commands.Infer,
            commands.Inspect,
            commands.Convert,
        )
        for name in command.__dataclass_fields__
    }
    named = set(re.findall(r"--([a-z][a-z-]+)", text)) - {"nproc-per-node", "help", "config"}
    assert named <= fields


def test_the_page_on_links(tmp_path):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/links.md").read_text(), re.DOTALL)
    graph = gd.load_dataset("grid:rows=12,cols=12")
    gd.write_partition(graph, gd.partition_graph(graph, 2, "random"), tmp_path / "parts")
    names = {}
    exec(code.replace("parts/cora", str(tmp_path / "parts")), names)
    assert 0.0 < names["loss"] < 0.69
    assert names["metrics"]["mrr"] > 0.1
