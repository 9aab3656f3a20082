"""A small graph in two unequal parts, and arguments for it that look like those of a real call.

real call on every rank         probe, whole (n = 74)         probe, in two parts (n = 43, 31)
x           rows of nodes  -->  a random table by node   -->  its rows of owned nodes
edge_index  an edge list   -->  the graph's edges        -->  in-edges of owned nodes, local ids
edge_attr   rows of edges  -->  a random table by edge   -->  its rows of local edges
anything else              -->  as it is                 -->  as it is
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gnn_dist.graph import Graph, graph_from_edges
from gnn_dist.parallel.placement import Kind, placement
from gnn_dist.partition import Partition
from gnn_dist.shard.shard import Shard

__all__ = ["Leaf", "ProbeArguments", "ProbeGraph", "ProbeShape", "describe", "make_graph"]

FIRST_SIZES = (43, 31)  # owned nodes of the two parts
NUM_RANDOM, NUM_LOOPS, NUM_COPIES, NUM_ISOLATED = 260, 9, 24, 4
SAMPLE_ROWS, SAMPLE_VALUES = 256, 1 << 16  # what is looked at of an argument
SEED = 2097


class ProbeGraph(NamedTuple):
    """A graph without data but edge ids, and its partition in two."""

    graph: Graph
    partition: Partition


def make_graph(taken: set[int], *, isolated: bool) -> ProbeGraph:
    """Make a directed graph with self-loops, copies of edges, and ids of the parts interleaved.

    Args:
        taken: Sizes that rows of nodes and of edges must not have, so that neither is mistaken for
            something else.
        isolated: Whether some nodes have no edge; otherwise every node has an in-edge.
    """
    first, second = FIRST_SIZES
    while {first, second, first + second} & taken:
        first, second = first + 2, second + 1
    num_nodes = first + second
    rng = np.random.default_rng(SEED)
    part = rng.permutation(np.arange(num_nodes) >= first).astype(np.int64)
    linked = rng.permutation(num_nodes)[NUM_ISOLATED if isolated else 0 :]
    num_random, taken = NUM_RANDOM, taken | {first, second, num_nodes}
    while True:
        src, dst = rng.choice(linked, (2, num_random))
        loops = rng.choice(linked, NUM_LOOPS, replace=False)
        # A ring through all linked nodes: each has an in-edge.
        src = np.concatenate([src, src[:NUM_COPIES], loops, linked])
        dst = np.concatenate([dst, dst[:NUM_COPIES], loops, np.roll(linked, 1)])
        sizes = {len(dst), int((part[dst] == 0).sum()), int((part[dst] == 1).sum())}
        if not sizes & taken and len(sizes) == 3:
            break
        num_random += 1
    graph = graph_from_edges(src, dst, num_nodes=num_nodes, edge_id=np.arange(len(src)))
    return ProbeGraph(graph, Partition(part, 2, method="probe"))


@dataclass(frozen=True)
class Leaf:
    """What one rank knows of one argument of a call.

    Attributes:
        kind: `nodes` or `edges` for rows of these, `ends` for an edge list, "" for anything else.
        number: Which of the call's edge lists it is, or its rows belong to; 0 is the shard's.
        num_rows: Rows of this rank.
        low: The least finite number in it, of a sample. `high` alike.
        sample: Rows of it, where they are no floating numbers.
    """

    kind: str
    number: int = 0
    num_rows: int = 0
    low: float = 0.0
    high: float = 1.0
    sample: Tensor | None = None


def describe(args: tuple[Any, ...], kwargs: dict[str, Any], shard: Shard) -> list[Leaf]:
    """Return what a call's arguments are on this rank, leaf by leaf; they are marked already."""
    leaves = tree_leaves((args, kwargs))
    lists = [shard.edge_index]
    for leaf in leaves:
        placed = placement(leaf)
        if placed is not None and placed.kind is Kind.ENDS:
            lists += [] if any(leaf is known for known in lists) else [leaf]
    return [_described(leaf, lists) for leaf in leaves]


def _described(leaf: object, lists: list[Tensor]) -> Leaf:
    placed = placement(leaf)
    if placed is None or not isinstance(leaf, Tensor):
        return Leaf("")
    ends = placed.ends if placed.ends is not None else lists[0]
    number = next((i for i, known in enumerate(lists) if known is ends), 0)
    if placed.kind is Kind.ENDS:
        return Leaf("ends", number, leaf.size(1))
    kind = "nodes" if placed.kind is Kind.NODES else "edges"
    rows = leaf.detach()
    if leaf.is_floating_point() or leaf.is_complex():
        values = _evenly(rows.abs() if leaf.is_complex() else rows.flatten(), SAMPLE_VALUES)
        values = values.double()[values.isfinite()]
        if len(values):
            return Leaf(kind, number, len(leaf), float(values.min()), float(values.max()))
        return Leaf(kind, number, len(leaf))
    if leaf.dim() == 1:
        # All values alike, so that a rare one is among them.
        sample = torch.unique(_evenly(rows, SAMPLE_VALUES))
    else:
        sample = _evenly(rows, max(1, min(SAMPLE_ROWS, SAMPLE_VALUES // max(1, rows[:1].numel()))))
    return Leaf(kind, number, len(leaf), sample=sample.cpu().clone())


def _evenly(rows: Tensor, most: int) -> Tensor:
    """Return at most so many rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]


class ProbeShape:
    """What the arguments of the probe are, and its graph; no values yet.

    Args:
        model: The model that they are for.
        given: Positional and named arguments of the real call on this rank.
        by_rank: What they are on each rank; those of the first that has any rows count.
        isolated: Whether the real graph has nodes without in-edges.

    Attributes:
        given: The real arguments, leaf by leaf. `leaves` alike: what they are.
        spec: How to put leaves together.
        graph: The graph; its sizes are those of nothing else.
    """

    def __init__(
        self,
        model: nn.Module,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        by_rank: Sequence[list[Leaf]],
        *,
        isolated: bool,
    ) -> None:
        self.given, self.spec = tree_flatten(given)
        self.leaves = [_first_with_rows(leaves) for leaves in zip(*by_rank, strict=True)]
        tensors = [leaf for leaf in self.given if isinstance(leaf, Tensor)]
        taken = {n for p in (*model.parameters(), *model.buffers()) for n in p.shape}
        self.graph = make_graph(
            taken | {n for leaf in tensors for n in leaf.shape[1:]}, isolated=isolated
        )

    @property
    def has_rows(self) -> bool:
        """Whether any argument is known to belong to nodes or edges."""
        return any(leaf.kind for leaf in self.leaves)


class ProbeArguments:
    """Draws the arguments of the probe, and gives a shard of its graph what is its.

    Args:
        shape: What they are.
        seed: Of their values.
    """

    def __init__(self, shape: ProbeShape, seed: int) -> None:
        self._shape = shape
        generator = torch.Generator().manual_seed(SEED + seed)
        graph = shape.graph.graph
        sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        self._tables = [
            _table(given, leaf, sizes[leaf.kind], generator) if leaf.kind in sizes else None
            for given, leaf in zip(shape.given, shape.leaves, strict=True)
        ]

    def on(
        self, shard: Shard, dtype: torch.dtype | None
    ) -> tuple[tuple[Any, ...], dict[str, Any], list[Tensor | None]]:
        """Return positional and named arguments on a shard of the graph.

        Args:
            shard: The shard.
            dtype: Of floating arguments; None: that of the real ones.

        Returns:
            Both, and by leaf the rows whose gradient is wanted.
        """
        lists: dict[int, Tensor] = {0: shard.edge_index}
        values: list[Any] = []
        wanted: list[Tensor | None] = []
        for given, leaf, table in zip(
            self._shape.given, self._shape.leaves, self._tables, strict=True
        ):
            value = given
            if leaf.kind == "ends":
                value = lists.setdefault(leaf.number, shard.edge_index[:, _kept(shard, leaf)])
            elif table is not None:
                value = table[_places(shard, leaf)]
            if isinstance(value, Tensor) and leaf.kind != "ends":
                value = _as_wanted(value, given, dtype)
            values.append(value)
            is_leaf = table is not None and value.requires_grad
            wanted.append(value if is_leaf else None)
        args, kwargs = tree_unflatten(values, self._shape.spec)
        return args, kwargs, wanted


def _first_with_rows(leaves: Sequence[Leaf]) -> Leaf:
    return next((leaf for leaf in leaves if leaf.kind and leaf.num_rows), leaves[0])


def _table(given: Tensor, leaf: Leaf, size: int, generator: torch.Generator) -> Tensor:
    """Draw a value for each node or edge of the whole graph."""
    shape = (size, *given.shape[1:])
    if leaf.sample is not None:
        if len(leaf.sample) == 0:
            return torch.zeros(shape, dtype=given.dtype)
        return leaf.sample[torch.randint(len(leaf.sample), (size,), generator=generator)]
    low, high = leaf.low, leaf.high
    if high <= low:  # all alike, which would hide much
        low, high = min(0.5 * low, 1.5 * low), max(0.5 * low, 1.5 * low) + (low == 0)
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator)
    return (low + (high - low) * drawn).to(given.dtype)


def _kept(shard: Shard, leaf: Leaf) -> Tensor:
    """Return bool (e,): the edges of an edge list; lists of another number hold others."""
    number = leaf.number
    ids = shard.edge_data["edge_id"]
    return ids % (number + 1) != 0 if number else torch.ones_like(ids, dtype=torch.bool)


def _places(shard: Shard, leaf: Leaf) -> Tensor:
    if leaf.kind == "nodes":
        return shard.node_id
    return shard.edge_data["edge_id"][_kept(shard, leaf)]


def _as_wanted(value: Tensor, given: Tensor, dtype: torch.dtype | None) -> Tensor:
    value = value.detach().cpu().clone()  # a model may write to it
    if value.is_floating_point() and dtype is not None:
        value = value.to(dtype)
    return value.requires_grad_(given.requires_grad)
