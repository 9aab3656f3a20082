"""Arrows point down: who may import whom (ARCHITECTURE.md)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE = {"errors", "sizes", "arrays", "features", "graph", "edge_stream"}
BASE |= {"partition", "edge_partition", "partition_entropy"}
# From the bottom up; a module may import its own layer and those before it.
LAYERS = [
    {"errors"},
    BASE - {"errors"},
    {"ops"},
    {"shard", "interop"},
    {"convert", "report", "out_of_core"},
    {"comm", "profile"},
    {"halo"},
    {"nn", "sampling"},
    {"parallel"},
    {"train"},
    {"estimators"},
    {"launch"},
    {"cli", "testing", "__main__"},
]
SIDE = {"partitioners": BASE | {"ops"}, "datasets": BASE | {"ops", "interop"}}
# What the top may use of the side folders.
USERS_OF_SIDE = {"cli", "estimators"}


def modules():
    for folder in ("gnn_dist", "partitioners", "datasets"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if folder == "gnn_dist" and parts[1] in SIDE:
                continue  # the same files through the links
            top = folder if folder in SIDE else parts[1]
            if top != "__init__":
                yield path, top


def imported(path):
    """Yield the first component below gnn_dist of everything a file imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "gnn_dist" and len(parts) > 1:
                yield parts[1]


def allowed(top):
    if top in SIDE:
        return SIDE[top] | {top}
    below = set()
    for layer in LAYERS:
        below |= layer
        if top in layer:
            break
    return below | (set(SIDE) if top in USERS_OF_SIDE else set()) | {"__version__"}


@pytest.mark.parametrize(
    ("path", "top"),
    list(modules()),
    ids=lambda v: str(v.relative_to(ROOT)) if isinstance(v, Path) else v,
)
def test_imports_point_down(path, top):
    assert {*SIDE, *set().union(*LAYERS)} >= {top}, f"{top} has no layer"
    assert set(imported(path)) <= allowed(top)


def test_no_relative_imports():
    for path, _ in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


@pytest.mark.parametrize(
    "module",
    [
        "gnn_dist",
        "gnn_dist.graph",
        "gnn_dist.edge_stream",
        "gnn_dist.partition",
        "gnn_dist.datasets",
        "gnn_dist.partitioners",
        "gnn_dist.shard.format",
        "gnn_dist.convert",
        "gnn_dist.convert.own_folder",
        "gnn_dist.convert.pyg_folder",
        "gnn_dist.convert.dgl_folder",
        "gnn_dist.report",
        "gnn_dist.shard.reader",
        "gnn_dist.out_of_core",
        "gnn_dist.train.config",
        "gnn_dist.launch.local",
        "gnn_dist.comm.detect",
        "gnn_dist.cli",
        "gnn_dist.cli.commands",
    ],
)
def test_light_modules_load_nothing_heavy(module):
    heavy = ["torch", "torch_geometric", "scipy", "pandas", "dgl", "ogb", "mpi4py", "pyarrow"]
    code = f"import sys, {module}; print([h for h in {heavy} if h in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["datasets", "partitioners"])
def test_the_side_folders_refuse_their_bare_names(name):
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 1
    assert f"gnn_dist.{name}" in done.stderr


def test_every_exported_name_exists():
    import gnn_dist

    for name in gnn_dist.__all__:
        assert getattr(gnn_dist, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        gnn_dist.nonsense  # noqa: B018


def test_docstrings_of_collectives_say_so():
    """What calls a transport says "Collective." first, unless its caller's docstring does."""
    verbs = {"exchange", "all_reduce", "broadcast", "all_gather_object", "barrier", "everywhere"}
    for path, top in modules():
        if top not in ("halo", "nn", "train"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            calls = {
                call.func.attr
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Attribute | ast.Name)
                and ast.unparse(call.func.value).split(".")[-1] in ("transport", "world")
            }
            in_function = node.name in ("forward", "backward") and node.args.args[0].arg == "ctx"
            if calls & verbs and not in_function:
                doc = ast.get_docstring(node) or ""
                assert doc.startswith("Collective."), f"{path.name}: {node.name}"
