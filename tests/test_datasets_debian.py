import os
import stat
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gnn_dist.datasets import debian, debian_index, load_dataset
from gnn_dist.datasets.debian_index import build_arrays, index_files, parse_packages, read_packages
from gnn_dist.errors import DatasetError

DATA = os.environ.get("GNN_DIST_DATA")

INDEX = """Package: alpha
Source: shared (1.2-3)
Section: contrib/net
Depends: beta (>= 1.0) | gamma:any, virtual-mail, alpha, unknown
Recommends: beta
Description: Fast network tool for the network
 Continued: this line is no field

Package: beta
Source: shared
Section: net
Depends: alpha
Description: A tool

Package: gamma
Source: psi
Section: libs
Provides: virtual-mail (= 2)
Pre-Depends: beta
Enhances: alpha,
 delta

Package: delta
Source: rho (1:2)
Section: libs
Provides: virtual-mail
Suggests: gamma

Version: 1.0
Depends: no name, so no package
"""


@pytest.fixture
def packages(monkeypatch):
    monkeypatch.setattr(debian_index, "MIN_CLASS_SIZE", 2)
    monkeypatch.setattr(debian_index, "NUM_WORDS", 3)
    return parse_packages(INDEX)


def test_parse_keeps_named_stanzas_and_wanted_fields(packages):
    assert sorted(packages) == ["alpha", "beta", "delta", "gamma"]
    assert packages["beta"] == {
        "Package": "beta",
        "Source": "shared",
        "Section": "net",
        "Depends": "alpha",
        "Description": "A tool",
    }


def test_edges_by_hand(packages):
    arrays = build_arrays(packages)
    assert arrays["names"].tolist() == ["alpha", "beta", "delta", "gamma"]
    # alpha: beta, both providers of virtual-mail, never itself; the first relation names the type.
    rows = list(zip(*arrays["edge_index"].tolist(), arrays["edge_type"].tolist(), strict=True))
    assert rows == [
        *((0, 1, 0), (0, 2, 0), (0, 3, 0)),
        (1, 0, 0),
        (2, 3, 3),
        *((3, 0, 4), (3, 1, 1)),
    ]
    assert arrays["edge_index"].dtype == np.int32
    assert arrays["edge_type"].dtype == np.int8


def test_labels_features_and_split_by_hand(packages):
    arrays = build_arrays(packages)
    assert arrays["classes"].tolist() == ["libs", "net"]
    assert arrays["y"].tolist() == [1, 1, 0, 0]
    # "tool" stands in two descriptions; the rest in one, so the alphabet decides.
    assert arrays["words"].tolist() == ["tool", "fast", "network"]
    assert arrays["x_indptr"].tolist() == [0, 3, 4, 4, 4]
    assert arrays["x_indices"].tolist() == [0, 1, 2, 0]
    assert arrays["x_shape"].tolist() == [4, 3]
    # Percentages of the hashes of shared, rho and psi: 12, 73 and 63.
    assert arrays["split"].tolist() == [0, 0, 2, 1]


def test_rare_sections_have_no_label_and_no_split(packages):
    packages["beta"]["Section"] = "odd"
    arrays = build_arrays(packages)
    assert arrays["y"].tolist() == [-1, -1, 0, 0]
    assert arrays["split"].tolist()[:2] == [-1, -1]


def test_messages_flow_from_the_needed_package(packages):
    graph = debian.graph_from_packages(build_arrays(packages), "index", directed=True)
    rows = np.split(graph.indices, graph.indptr[1:-1])
    assert [row.tolist() for row in rows] == [[1, 2, 3], [0], [3], [0, 1]]
    assert graph.edge_type.tolist() == [0, 0, 0, 0, 3, 4, 1]


def test_symmetrised_by_default_with_the_type_of_each_direction(packages):
    graph = debian.graph_from_packages(build_arrays(packages), "index", directed=False)
    assert graph.is_symmetric
    rows = np.split(graph.indices, graph.indptr[1:-1])
    assert [row.tolist() for row in rows] == [[1, 2, 3], [0, 3], [0, 3], [0, 1, 2]]
    # 0 <- 3 is alpha's dependency, 3 <- 0 what gamma enhances: each keeps its own.
    assert graph.edge_type.tolist() == [0, 0, 0, 0, 1, 0, 3, 4, 1, 3]


def write_index(monkeypatch, *texts):
    """Make these texts this machine's package index."""
    files = [Path(f"/lists/{i}_Packages") for i in range(len(texts))]
    monkeypatch.setattr(debian, "index_files", lambda: files)
    contents = {str(file): text for file, text in zip(files, texts, strict=True)}
    monkeypatch.setattr(debian_index, "_run", lambda command: contents[command[-1]])


def test_later_files_replace_entries(monkeypatch):
    write_index(monkeypatch, INDEX, "Package: beta\nSection: new\n")
    packages = read_packages(debian.index_files())
    assert packages["beta"] == {"Package": "beta", "Section": "new"}
    assert packages["alpha"]["Section"] == "contrib/net"


def test_built_graph_is_kept_and_read_again(tmp_path, packages, monkeypatch):
    write_index(monkeypatch, INDEX)
    root = tmp_path / "new"
    built = load_dataset("debian", root)
    assert os.listdir(root) == ["debian.npz"]
    assert stat.S_IMODE((root / "debian.npz").stat().st_mode) == 0o644
    monkeypatch.setattr(debian, "index_files", list)
    again = load_dataset("debian", root)
    for name in ("indptr", "indices", "edge_type", "edge_id", "y", "train_mask", "test_mask"):
        assert np.array_equal(getattr(built, name), getattr(again, name))
    assert (built.x.to_dense() == again.x.to_dense()).all()
    assert built.num_edges == again.num_edges == 10


def test_root_that_cannot_be_written_is_no_fault(tmp_path, packages, monkeypatch):
    write_index(monkeypatch, INDEX)
    root = tmp_path / "file"
    root.write_text("not a folder")
    assert load_dataset("debian", root / "deeper").num_nodes == 4
    assert load_dataset("debian").num_nodes == 4


def test_interrupted_save_leaves_nothing_behind(tmp_path, packages, monkeypatch):
    write_index(monkeypatch, INDEX)

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    assert load_dataset("debian", tmp_path).num_nodes == 4
    assert os.listdir(tmp_path) == []


def test_neither_file_nor_index(tmp_path, monkeypatch):
    monkeypatch.setattr(debian, "index_files", list)
    assert not debian.is_available(None)
    assert not debian.is_available(tmp_path)
    with pytest.raises(DatasetError, match=r"got neither: run `apt-get update`, or put the file"):
        load_dataset("debian", tmp_path)
    (tmp_path / "debian.npz").touch()
    assert debian.is_available(tmp_path)


def test_incomplete_file_names_the_key(tmp_path):
    np.savez(tmp_path / "debian.npz", edge_index=np.zeros((2, 0), int))
    with pytest.raises(DatasetError, match=r"debian\.npz must hold the key edge_type, got none"):
        load_dataset("debian", tmp_path)


def test_apt_that_fails_is_no_index(monkeypatch):
    def broken(command, **options):
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr(debian_index.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(debian_index, "APT_HELPER", __file__)
    monkeypatch.setattr(debian_index.subprocess, "run", broken)
    with pytest.raises(DatasetError, match=r"apt could not read its package index .* 100"):
        index_files()
    assert not debian.is_available(None)


def test_only_the_distribution_counts(tmp_path, monkeypatch):
    names = ["b_Packages", "a_Packages", "other_Packages"]
    for name in names:
        (tmp_path / name).touch()
    lines = [f"Debian\t{tmp_path}/{name}" for name in names[:2]]
    lines += [f"Vendor\t{tmp_path}/{names[2]}", f"Debian\t{tmp_path}/gone", "noise"]
    monkeypatch.setattr(debian_index, "_run", lambda command: "\n".join(lines))
    monkeypatch.setattr(debian_index.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(debian_index, "APT_HELPER", __file__)
    assert index_files() == [tmp_path / "a_Packages", tmp_path / "b_Packages"]
    monkeypatch.setattr(debian_index.shutil, "which", lambda name: None)
    assert index_files() == []


@pytest.mark.skipif(not debian.is_available(None), reason="needs apt's package index")
def test_this_machines_index(tmp_path):
    graph = load_dataset("debian")
    assert graph.num_nodes > 50_000
    assert graph.num_edges > 10 * graph.num_nodes / 2
    assert graph.num_features == 1024
    assert 0.45 < graph.train_mask.sum() / (graph.y >= 0).sum() < 0.55


@pytest.mark.skipif(DATA is None, reason="needs GNN_DIST_DATA")
def test_published_figures():
    graph = load_dataset("debian", DATA)
    directed = load_dataset("debian", DATA, directed=True)
    assert (graph.num_edges, directed.num_edges) == (657_370, 333_774)
    assert graph.in_degree.max() == 21_846
    assert directed.in_degree.max() < 1_000
    assert np.bincount(directed.edge_type).size == 5
