"""Small awkward graphs with partitions, shared by every test that depends on the partition.

    @pytest.mark.parametrize("name", AWKWARD)
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4])
    def test_something(name, world_size):
        graph, partition = awkward_case(name, world_size)[1:]

Every graph has float64 features (N, 5), labels of three classes, and disjoint masks with at least
one training node. Everything is seeded: two calls return equal arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from gnn_dist.graph import Graph, graph_from_edges
from gnn_dist.partition import Partition

__all__ = ["AWKWARD", "NUM_CLASSES", "NUM_FEATURES", "Case", "awkward_case", "awkward_cases"]

Array = NDArray[Any]

NUM_FEATURES = 5
NUM_CLASSES = 3


class Case(NamedTuple):
    """A graph, a partition of it, and what is awkward about them."""

    name: str
    graph: Graph
    partition: Partition


def awkward_cases(num_parts: int = 4) -> list[Case]:
    """Return all cases for a number of parts."""
    return [awkward_case(name, num_parts) for name in AWKWARD]


def awkward_case(name: str, num_parts: int = 4) -> Case:
    """Return one case, by its name in `AWKWARD`."""
    rng = np.random.default_rng(crc32(name.encode()))
    graph, assignment = _MAKERS[name](rng, num_parts)
    return Case(name, graph.replace(name=name), Partition(assignment, num_parts, method=name))


def _random_partition(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    return _symmetric(rng, 30), rng.integers(0, num_parts, 30)


def _empty_part(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """The second part is empty (with one part there is none to be so)."""
    assignment = rng.integers(0, num_parts, 24)
    assignment[assignment == 1] = 0
    return _symmetric(rng, 24), assignment


def _all_on_one(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """The last part holds everything, so every earlier one is empty."""
    return _symmetric(rng, 20), np.full(20, num_parts - 1)


def _no_halo(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Each part is a component of its own; ids of the components are interleaved."""
    num_nodes = 8 * num_parts
    src, dst = rng.integers(0, num_nodes, (2, 4 * num_nodes))
    dst = dst - dst % num_parts + src % num_parts
    assignment = np.arange(num_nodes) % num_parts
    return _graph(rng, src, dst, num_nodes, symmetrize=True), assignment


def _no_edges(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    none = np.zeros(0, np.int64)
    return _graph(rng, none, none, 10), np.arange(10) % num_parts


def _isolated_nodes(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Node 0, some in the middle and the last four have no edges."""
    linked = np.array([1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 14, 15])
    src, dst = rng.choice(linked, (2, 30))
    return _graph(rng, src, dst, 20, symmetrize=True), rng.integers(0, num_parts, 20)


def _part_without_train(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Only the first part has training nodes."""
    assignment = np.arange(24) % num_parts
    train = (assignment == 0) & (np.arange(24) < 20)
    rest = ~train
    val, test = rest & (np.arange(24) % 2 == 0), rest & (np.arange(24) % 2 == 1)
    graph = _symmetric(rng, 24)
    return graph.replace(train_mask=train, val_mask=val, test_mask=test), assignment


def _self_loops(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Half of the nodes have a self-loop, of which node 0 has nothing else."""
    src, dst = rng.integers(1, 20, (2, 40))
    loops = np.arange(0, 20, 2)
    src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
    return _graph(rng, src, dst, 20, symmetrize=True), rng.integers(0, num_parts, 20)


def _duplicate_edges(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Directed, with edges and self-loops up to four times over."""
    src, dst = rng.integers(0, 18, (2, 30))
    src, dst = np.append(src, [4, 9]), np.append(dst, [4, 9])
    copies = rng.integers(2, 5, len(src))
    src, dst = np.repeat(src, copies), np.repeat(dst, copies)
    return _graph(rng, src, dst, 18), rng.integers(0, num_parts, 18)


def _directed(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """No edge has its reverse: all go to a higher id. Node 0 has no in-edges, 25 no out-edges."""
    pairs = np.sort(rng.permutation(26 * 26)[:90])
    low, high = np.minimum(pairs // 26, pairs % 26), np.maximum(pairs // 26, pairs % 26)
    proper = low != high
    return _graph(rng, low[proper], high[proper], 26), rng.integers(0, num_parts, 26)


def _edge_weighted(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    src, dst = rng.integers(0, 22, (2, 80))
    weight = rng.uniform(0.1, 2.0, 80)
    return _graph(rng, src, dst, 22, edge_weight=weight), rng.integers(0, num_parts, 22)


def _single_node(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """One node with a self-loop, on the last part."""
    zero = np.zeros(1, np.int64)
    return _graph(rng, zero, zero, 1), np.array([num_parts - 1])


def _star(rng: Generator, num_parts: int) -> tuple[Graph, Array]:
    """Node 7 is tied to all others, which have no further edges: halo on every part but its own."""
    leaves = np.delete(np.arange(25), 7)
    hub = np.full(24, 7)
    return _graph(rng, leaves, hub, 25, symmetrize=True), np.arange(25) % num_parts


_MAKERS: dict[str, Callable[[Generator, int], tuple[Graph, Array]]] = {
    "random partition": _random_partition,
    "empty part": _empty_part,
    "all on one": _all_on_one,
    "no halo": _no_halo,
    "no edges": _no_edges,
    "isolated nodes": _isolated_nodes,
    "part without train": _part_without_train,
    "self-loops": _self_loops,
    "duplicate edges": _duplicate_edges,
    "directed": _directed,
    "edge-weighted": _edge_weighted,
    "single node": _single_node,
    "star": _star,
}

AWKWARD = tuple(_MAKERS)
# For what differs little from graph to graph: the others are for `scripts/test slow`.
MOSTLY_SLOW = tuple(
    name
    if name in ("directed", "empty part", "random partition", "star")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in AWKWARD
)


def _symmetric(rng: Generator, num_nodes: int) -> Graph:
    src, dst = rng.integers(0, num_nodes, (2, 2 * num_nodes))
    return _graph(rng, src, dst, num_nodes, symmetrize=True)


def _graph(rng: Generator, src: Array, dst: Array, num_nodes: int, **more: Any) -> Graph:
    # Two of four nodes train, the others validate and test, in a random order.
    role = rng.permutation(num_nodes) % 4
    return graph_from_edges(
        src,
        dst,
        num_nodes=num_nodes,
        x=rng.standard_normal((num_nodes, NUM_FEATURES)),
        y=rng.integers(0, NUM_CLASSES, num_nodes),
        num_classes=NUM_CLASSES,
        train_mask=role < 2,
        val_mask=role == 2,
        test_mask=role == 3,
        **more,
    )
