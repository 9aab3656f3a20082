from itertools import pairwise

import numpy as np
import pytest

from gnn_dist.errors import PartitionError
from gnn_dist.graph import CSRFeatures, graph_from_edges
from gnn_dist.partition import Partition
from gnn_dist.partition_entropy import measure_label_entropy
from gnn_dist.partitioners import metis_ew, partition_graph
from gnn_dist.partitioners.adjacency import undirected_rows
from gnn_dist.partitioners.metis_ew import MetisEW


def graph_of(seed=0, x="dense", num_nodes=40):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, 160))
    values = rng.standard_normal((num_nodes, 6)) * (rng.random((num_nodes, 6)) < 0.5)
    if x == "sparse":
        indptr = np.concatenate([[0], np.cumsum((values != 0).sum(1))])
        features = CSRFeatures(indptr, np.nonzero(values)[1], values[values != 0], 6)
    else:
        features = values if x == "dense" else None
    return graph_from_edges(src, dst, num_nodes=num_nodes, x=features)


def weights_of(graph, **options):
    """Return {(u, v): weight} of all entries."""
    compute, found = MetisEW(**options)._edge_weights(graph), {}
    for rows in undirected_rows(graph):
        ends = np.concatenate([[0], np.cumsum(rows.degree)])
        values = compute(rows)
        assert values.dtype == np.int64
        for row, (start, stop) in enumerate(pairwise(ends)):
            for v, value in zip(rows.neighbours[start:stop], values[start:stop], strict=True):
                found[rows.start + row, int(v)] = int(value)
    return found


def by_definition(graph, u, v, c, fanout):
    degrees = [max(1e-300, float(graph.in_degree[w])) for w in (u, v)]
    likeness = 0.0
    if graph.x is not None:
        x = graph.x.to_dense() if isinstance(graph.x, CSRFeatures) else graph.x
        unit = [x[w] / (1e-5 + np.linalg.norm(x[w])) for w in (u, v)]
        likeness = c * float(unit[0] @ unit[1])
    return 100 * (likeness + 1 - np.mean([np.exp(-fanout / d) for d in degrees]))


@pytest.mark.parametrize("full_share", [0, 16])
@pytest.mark.parametrize("x", ["dense", "sparse", None])
@pytest.mark.parametrize(("c", "fanout"), [(1.0, 25), (10.0, 3), (0.0, 1)])
def test_weights_are_those_of_the_formula(x, c, fanout, full_share, monkeypatch):
    monkeypatch.setattr(metis_ew, "FULL_SHARE", full_share)
    monkeypatch.setattr(metis_ew, "CHUNK_VALUES", 64)  # many small chunks
    graph = graph_of(x=x)
    found = weights_of(graph, c=c, fanout=fanout)
    assert found
    for (u, v), weight in found.items():
        want = by_definition(graph, u, v, c, fanout)
        # A truncated integer may fall on either side of rounding.
        assert weight in {max(1, int(want - 1e-3)), max(1, int(want + 1e-3))}
        assert weight == found[v, u]
        assert weight >= 1


def test_repeated_sparse_columns_add_up():
    x = CSRFeatures(np.array([0, 2, 3]), np.array([1, 1, 1]), None, 2)
    graph = graph_from_edges([0, 1], [1, 0], num_nodes=2, x=x)
    dense = graph.replace(x=np.array([[0.0, 2.0], [0.0, 1.0]]))
    assert weights_of(graph) == weights_of(dense)


def test_copies_of_an_edge_count_once():
    once = graph_from_edges([0, 1], [1, 0], num_nodes=3)
    twice = graph_from_edges([0, 0, 1], [1, 1, 0], num_nodes=3)
    assert (
        weights_of(once, fanout=1000)
        == weights_of(twice, fanout=1000)
        == {
            (0, 1): 100,
            (1, 0): 100,
        }
    )


def test_parts_hold_fewer_classes():
    """In a graph that ties all classes alike, likeness decides."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 1000, (2, 5000))
    y = rng.integers(0, 4, 1000)
    graph = graph_from_edges(src, dst, num_nodes=1000, symmetrize=True, x=np.eye(4)[y], y=y)
    mixed = {}
    for method, options in (("metis", {}), ("metis-ew", {"c": 10})):
        partition = partition_graph(graph, 4, method, **options)
        mixed[method] = measure_label_entropy(y, partition.assignment, 4).mean
    assert mixed["metis"] > 1.9
    assert mixed["metis-ew"] < 1.75


def test_it_is_deterministic_and_says_its_options():
    graph = graph_of(num_nodes=80)
    one, other = (partition_graph(graph, 4, "metis-ew", seed=3) for _ in range(2))
    assert np.array_equal(one.assignment, other.assignment)
    assert isinstance(one, Partition)
    assert one.method == "metis-ew"
    assert (one.options["c"], one.options["fanout"], one.options["seed"]) == (1.0, 25, 3)
    assert (one.sizes > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": -1}, "c must be a number between 0.0 and 1000.0, got -1"),
        ({"c": float("nan")}, "c must be a number"),
        ({"fanout": 0}, "fanout must be an integer in 1"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(PartitionError, match=message):
        MetisEW(**options)
