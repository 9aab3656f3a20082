"""What every registered partitioner promises, on every kind of graph."""

import doctest
import pkgutil
from dataclasses import FrozenInstanceError, fields
from importlib import import_module

import numpy as np
import pytest
from awkward import AWKWARD, awkward_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnn_dist import partitioners
from gnn_dist.graph import MASK_NAMES, graph_fields, graph_from_edges
from gnn_dist.partitioners import available, partition_graph
from gnn_dist.partitioners.mtkahypar import has_mtkahypar

# Those that assign edges have a contract of their own, in test_partitioner_vertex_cut.py.
METHODS = [name for name, a in available().items() if getattr(a, "cut", "edge") == "edge"]
METHODS = [name for name in METHODS if name != "mtkahypar" or has_mtkahypar()]
BALANCED = [
    name
    for name, a in available().items()
    if name in METHODS and "balance" in {f.name for f in fields(a)}
]
IN_CHILD = {"metis", "metis-ew", "metis-stream", "mtkahypar"}
MODULES = [module.name for module in pkgutil.iter_modules(partitioners.__path__)]
MODULES = [name for name in MODULES if not name.startswith("_")]


def freeze(graph):
    """Make every array of a graph read-only and return copies of them."""
    arrays = {name: getattr(graph, name) for name in graph_fields()}
    arrays = {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}
    for array in arrays.values():
        array.flags.writeable = False
    return {name: array.copy() for name, array in arrays.items()}


def check(graph, num_parts, method, **options):
    """Partition a graph and check everything that is promised of any partition."""
    before = freeze(graph)
    partition = partition_graph(graph, num_parts, method, **options)
    assert partition.num_parts == num_parts
    assert partition.assignment.shape == (graph.num_nodes,)
    assert partition.assignment.dtype == np.int32
    assert 0 <= partition.assignment.min() <= partition.assignment.max() < num_parts
    assert partition.sizes.min() >= 1
    assert partition.sizes.sum() == graph.num_nodes
    assert partition.method == method
    assert options.items() <= partition.options.items()
    for name, array in before.items():
        assert np.array_equal(getattr(graph, name), array), name
    return partition


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_graphs(name, method):
    graph = awkward_case(name).graph
    for num_parts in sorted({1, 2, 3, graph.num_nodes}):
        if num_parts <= graph.num_nodes:
            check(graph, num_parts, method)


@pytest.mark.parametrize("method", BALANCED)
@pytest.mark.parametrize("balance", ["nodes", "edges"])
@pytest.mark.parametrize("name", ["isolated nodes", "duplicate edges", "star", "no edges"])
def test_awkward_graphs_by_balance(name, method, balance):
    check(awkward_case(name).graph, 3, method, balance=balance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["random partition", "duplicate edges", "isolated nodes"])
def test_two_calls_agree(name, method):
    graph = awkward_case(name).graph
    first, second = (partition_graph(graph, 3, method) for _ in range(2))
    assert np.array_equal(first.assignment, second.assignment)
    assert (first.options, first.notes) == (second.options, second.notes)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"metis-ew"}))
def test_only_structure_and_masks_count(method):
    full = awkward_case("random partition").graph
    masks = {name: getattr(full, name) for name in MASK_NAMES}
    bare = graph_from_edges(*full.edges(), num_nodes=full.num_nodes, **masks)
    assert np.array_equal(
        partition_graph(full, 3, method).assignment, partition_graph(bare, 3, method).assignment
    )


def multigraph(seed, num_nodes, num_edges):
    """A multigraph with isolated nodes, self-loops, repeats and hubs, by seed."""
    rng = np.random.default_rng(seed)
    ends = (num_nodes * rng.random((2, num_edges)) ** rng.integers(1, 4)).astype(np.int64)
    return graph_from_edges(*ends, num_nodes=num_nodes, symmetrize=bool(rng.integers(2)))


graphs = st.builds(multigraph, st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(0, 120))


@settings(max_examples=100, deadline=None)
@given(graphs, st.data())
@pytest.mark.parametrize(
    "method",
    [
        *sorted(set(METHODS) - IN_CHILD - {"best"}),
        pytest.param("best", marks=pytest.mark.slow),
    ],
)
def test_any_multigraph(method, graph, data):
    check(graph, data.draw(st.integers(1, graph.num_nodes)), method)


# Few examples: each starts a child process, 0.1 s to 0.2 s.
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs, st.sampled_from(["nodes", "edges"]), st.booleans(), st.data())
def test_any_multigraph_with_metis(graph, balance, recursive, data):
    num_parts = data.draw(st.integers(1, graph.num_nodes))
    check(graph, num_parts, "metis", balance=balance, recursive=recursive)


@pytest.mark.parametrize("method", METHODS)
def test_partitioners_are_frozen_and_hashable(method):
    partitioner = available()[method]()
    assert hash(partitioner) == hash(available()[method]())
    with pytest.raises(FrozenInstanceError):
        setattr(partitioner, fields(partitioner)[0].name, None)


@pytest.mark.parametrize("module", MODULES)
def test_doctests(module):
    assert doctest.testmod(import_module(f"gnn_dist.partitioners.{module}")).failed == 0
