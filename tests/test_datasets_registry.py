import os
import subprocess
import sys
from pathlib import Path

import pytest

import gnn_dist
from gnn_dist.datasets import DatasetInfo, list_datasets, load_dataset
from gnn_dist.errors import DatasetError

DATA = os.environ.get("GNN_DIST_DATA")
REPO = Path(__file__).parent.parent
ON_DISK = [
    *("cora", "citeseer", "amazon-computers", "amazon-photo", "coauthor-cs", "coauthor-physics"),
    *("cora-ml", "dblp", "facebook-pages", "tolokers", "minesweeper", "debian", "grid"),
]


def run_python(code, cwd=REPO):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_bare_name_is_refused():
    result = run_python("import datasets")
    assert result.returncode == 1
    assert "ImportError: this folder must be imported as gnn_dist.datasets" in result.stderr


def test_import_and_listing_load_nothing_heavy():
    heavy = "{'torch', 'torch_geometric', 'scipy', 'pandas', 'ogb', 'dgl', 'pyarrow'}"
    code = (
        "import sys, gnn_dist.datasets as d; d.list_datasets(); "
        f"from gnn_dist import interop; print(sorted({heavy} & set(sys.modules)))"
    )
    assert run_python(code).stdout.strip() == "[]"


def test_load_dataset_is_exported_at_the_top():
    assert gnn_dist.load_dataset is load_dataset
    assert gnn_dist.graph_from_pyg.__module__ == gnn_dist.graph_from_dgl.__module__


def test_list_names_each_dataset_once():
    infos = list_datasets()
    names = [info.name for info in infos]
    assert len({name.replace("-", "") for name in names}) == len(names) == 23
    assert all(isinstance(info, DatasetInfo) and info.licence and info.obtained for info in infos)
    assert {info.metric for info in infos} == {"accuracy", "micro-f1", "roc-auc"}
    assert [i.name for i in infos if i.task == "multilabel"] == ["yelp", "amazon-products"]


@pytest.mark.skipif(DATA is None, reason="needs GNN_DIST_DATA")
@pytest.mark.parametrize("name", ON_DISK)
def test_listed_sizes_are_those_loaded(name):
    graph = load_dataset(name, DATA)
    info = next(info for info in list_datasets() if info.name == name)
    assert graph.name == name
    assert (graph.num_nodes, graph.num_edges) == (info.num_nodes, info.num_edges)
    assert (graph.num_features, graph.num_classes) == (info.num_features, info.num_classes)
    assert graph.task == info.task
    assert graph.is_symmetric
    assert graph.num_splits == {"tolokers": 10, "minesweeper": 10}.get(
        name, int(name in ("cora", "citeseer", "debian"))
    )


@pytest.mark.parametrize("name", ["grid", "GRID", "Gr-id", "g_rid"])
def test_names_match_without_case_and_dashes(name):
    assert load_dataset(f"{name}:rows=2,cols=2").name == "grid:rows=2,cols=2"


def test_unknown_name_offers_the_nearest():
    with pytest.raises(DatasetError, match=r"unknown dataset 'coar': did you mean 'cora'\?"):
        load_dataset("coar")
    with pytest.raises(DatasetError, match=r"unknown dataset 'zzzzzz': known: amazon-computers"):
        load_dataset("zzzzzz")


@pytest.mark.parametrize("path", ["no/such", "absent.csv", "absent.npz:num_nodes=3"])
def test_missing_path_is_named(path):
    with pytest.raises(DatasetError, match=f"no file or folder '{path.split(':')[0]}'"):
        load_dataset(path)


def test_registered_name_wins_over_a_path_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "edges.csv").write_text("0,1\n")
    monkeypatch.chdir(tmp_path)
    assert load_dataset("grid").num_nodes == 64 * 64
    assert load_dataset("./grid").num_nodes == 2


def test_colon_in_an_existing_path_is_no_option(tmp_path):
    path = tmp_path / "a:b=1.csv"
    path.write_text("0,1\n")
    assert load_dataset(str(path)).num_edges == 1
    assert load_dataset(f"{path}:num_nodes=5").num_nodes == 5


def test_negative_seed_is_refused():
    with pytest.raises(DatasetError, match="seed must be at least 0, got -1"):
        load_dataset("sbm", seed=-1)


@pytest.mark.parametrize("name", ["cora", "dblp", "coauthor-cs", "reddit", "ogbn-arxiv"])
def test_missing_root_says_what_to_pass(name):
    with pytest.raises(
        DatasetError, match=f"{name} needs a folder of datasets, got none: pass --r"
    ):
        load_dataset(name)
