"""The front end: `partition_graph`, the registry and option checks."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import gnn_dist
from gnn_dist.errors import PartitionError
from gnn_dist.graph import graph_from_edges
from gnn_dist.partition import Partition
from gnn_dist.partitioners import Contiguous, Metis, Partitioner, available, partition_graph
from gnn_dist.partitioners.options import check_choice, check_integer, check_number

ROOT = Path(__file__).parent.parent


@pytest.fixture
def ring():
    return graph_from_edges(np.arange(6), np.roll(np.arange(6), -1), name="ring")


@dataclass(frozen=True)
class Fixed:
    """Returns what it is told to."""

    result: object
    name: ClassVar[str] = "fixed"

    def __call__(self, graph, num_parts):
        return self.result


def test_available_names_are_the_classes():
    assert list(available()) == sorted(available())
    for name, algorithm in available().items():
        assert algorithm.name == name
        assert isinstance(algorithm(), Partitioner)


def test_partition_graph_is_a_name_of_the_package():
    assert gnn_dist.partition_graph is partition_graph


def test_the_partition_says_how_it_was_made(ring):
    partition = partition_graph(ring, 3, "random", seed=np.int64(7))
    assert partition.method == "random"
    assert partition.options == {"seed": 7}
    assert type(partition.options["seed"]) is int
    assert partition.notes == ()
    assert partition_graph(ring, 3, "Contiguous").options == {"balance": "nodes"}
    assert partition_graph(ring, 3).method == "best"


def test_num_parts_may_be_a_numpy_integer(ring):
    assert partition_graph(ring, np.int32(2), "contiguous").num_parts == 2


@pytest.mark.parametrize(
    ("num_parts", "message"),
    [
        (0, "num_parts must be between 1 and num_nodes=6, got 0: raise --parts"),
        (-3, "got -3: raise --parts"),
        (7, "num_parts must be between 1 and num_nodes=6, got 7: lower --parts"),
        (2.0, r"num_parts \(--parts\) must be an integer .* got 2.0"),
        (True, "got True"),
        ("4", "got '4'"),
        (None, "got None"),
    ],
)
def test_bad_num_parts_are_refused(ring, num_parts, message):
    with pytest.raises(PartitionError, match=message):
        partition_graph(ring, num_parts, "contiguous")


@pytest.mark.parametrize("method", ["contiguous", "metis", "random"])
def test_a_graph_without_nodes_is_refused(method):
    graph = graph_from_edges([], [], name="void")
    with pytest.raises(PartitionError, match="at least one node to be partitioned, got 'void'"):
        partition_graph(graph, 1, method)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("metsi", {}, r"no partitioning method 'metsi' \(--method\): did you mean 'metis'"),
        ("zzz", {}, "known: 2ps-l, best, contiguous, dbh, fennel, hdrf"),
        (Metis, {}, "must be a name or a partitioner such as"),
        (len, {}, "must be a name or a partitioner such as"),
        (3, {}, "got 3"),
        (Metis(), {"seed": 1}, r"options must be given to .*, got \['seed'\] beside it"),
        ("random", {"balance": "edges"}, "'random' has no option 'balance': its options are seed"),
        (
            "metis",
            {"blance": "edges"},
            "its options are balance, imbalance, part_weights, seed, objective, recursive, tries",
        ),
        ("contiguous", {"balance": "train"}, "balance must be 'nodes' or 'edges', got 'train'"),
        ("random", {"seed": -1}, r"seed must be an integer in 0\.\."),
        ("metis", {"part_weights": 7}, "part_weights must be numbers, one for each part, got 7"),
        ("metis", {"part_weights": "21"}, "part_weights must be numbers, one for each part"),
        ("metis", {"refine": "maybe"}, "refine must be true or false, got 'maybe'"),
        ("metis", {"refine": 1}, "refine must be true or false, got 1"),
    ],
)
def test_bad_methods_and_options_are_refused(ring, method, options, message):
    with pytest.raises(PartitionError, match=message):
        partition_graph(ring, 2, method, **options)


def test_a_partitioner_of_one_s_own(ring):
    made = Partition(np.arange(6) % 2, 2, notes=("by hand",))
    partition = partition_graph(ring, 2, Fixed(made))
    assert partition.assignment.tolist() == [0, 1, 0, 1, 0, 1]
    assert partition.method == "fixed"
    assert partition.notes == ("by hand",)
    assert partition_graph(ring, 2, Contiguous(balance="edges")).options == {"balance": "edges"}


def test_empty_parts_of_a_partitioner_of_one_s_own_are_named(ring):
    partition = partition_graph(ring, 4, Fixed(Partition(np.full(6, 2), 4)))
    assert partition.notes == ("parts without nodes: 0, 1, 3",)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.zeros(6), "'fixed' must return a Partition, got ndarray"),
        (Partition(np.zeros(5, int), 2), "assign 6 nodes to 2 parts, got 5 nodes and 2 parts"),
        (Partition(np.zeros(6, int), 3), "got 6 nodes and 3 parts"),
    ],
)
def test_results_that_are_no_partition_are_refused(ring, result, message):
    with pytest.raises(PartitionError, match=message):
        partition_graph(ring, 2, Fixed(result))


def test_option_checks_return_plain_values():
    assert check_choice("o", "a", ("a", "b")) == "a"
    assert type(check_integer("o", np.uint8(3), 0, 3)) is int
    assert type(check_number("o", np.float32(0.5), 0, 1)) is float
    assert check_number("o", 1, 0, 1) == 1.0


@pytest.mark.parametrize(
    "check",
    [
        lambda: check_choice("o", 1, ("a",)),
        lambda: check_choice("o", "c", ("a",)),
        lambda: check_integer("o", 4, 0, 3),
        lambda: check_integer("o", 1.0, 0, 3),
        lambda: check_integer("o", False, 0, 3),
        lambda: check_number("o", float("nan"), 0, 1),
        lambda: check_number("o", 1.5, 0, 1),
        lambda: check_number("o", True, 0, 1),
        lambda: check_number("o", "1", 0, 1),
    ],
)
def test_option_checks_refuse(check):
    with pytest.raises(PartitionError, match=r"^o must be"):
        check()


def run_python(code, folder):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_bare_name_is_refused(tmp_path):
    result = run_python("import partitioners", tmp_path)
    assert result.returncode == 1
    assert "ImportError: this package must be imported as gnn_dist.partitioners" in result.stderr


def test_import_loads_nothing_heavy(tmp_path):
    code = (
        "import sys, gnn_dist.partitioners as p\n"
        "heavy = {'torch', 'scipy', 'pymetis', 'pandas', 'torch_geometric'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = run_python(code, tmp_path)
    assert result.returncode == 0, result.stderr
