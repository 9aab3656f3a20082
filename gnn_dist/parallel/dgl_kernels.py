"""DGL's kernels on a shard, in place of those on a whole graph.

DGL reaches its kernels through autograd functions, which no mode of PyTorch sees. While a model
runs, these few functions are others: rows at the sources of edges are lifted to those of halo nodes
first, and results marked for the tracer. Whatever of DGL a layer calls ends in one of them.

    layer --> update_all, apply_edges, edge_softmax, dgl.ops --> GSpMM, GSDDMM, EdgeSoftmax
                                                                     |
              our sums while halo rows travel, or    <---------------+
              the same kernel over n + h sources
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.halo.aggregate import aggregate
from gnn_dist.halo.block import Block
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, Placement, mark, placement

if TYPE_CHECKING:
    from gnn_dist.parallel.dgl_graph import ShardGraph

__all__ = ["ShardIndex", "shard_kernels"]

SPARSE = "dgl.backend.pytorch.sparse"
TYPED_LINEAR = "dgl.nn.pytorch.linear"
GRAPH_CONV = "dgl.nn.pytorch.conv.graphconv"
REFUSED = (
    *("GSpMM_hetero", "GSDDMM_hetero", "EdgeSoftmax_hetero", "SegmentReduce", "ScatterAdd"),
    *("CSRMM", "CSRSum", "CSRMask"),
)


class ShardIndex:
    """A shard's graph, as DGL's functions take it: what they do with it is done here.

    Args:
        graph: Whose it is.
        real: DGL's own index of its edges: n + h sources, n targets; of a reversed graph, n
            sources, n + h targets.
    """

    def __init__(self, graph: "ShardGraph", real: Any) -> None:
        self.graph, self.real = graph, real

    def number_of_etypes(self) -> int:
        """Return 1."""
        return 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"DGL reads {name} of the graph's index, of which a rank has its own edges: prepare "
            "the graph before it is partitioned"
        )


@contextmanager
def shard_kernels(call: Call) -> Iterator[None]:
    """Have DGL's kernels work on shards while this lasts."""
    sparse, linear, conv = (import_module(name) for name in (SPARSE, TYPED_LINEAR, GRAPH_CONV))
    kernels: dict[str, Callable[..., Any]] = {
        "GSpMM": _reduced,
        "GSDDMM": _by_edge,
        "EdgeSoftmax": _edge_softmax,
        **dict.fromkeys(REFUSED, _refused),
    }
    new: list[tuple[Any, str, Any]] = [
        (sparse, name, _Kernel(call, getattr(sparse, name), does)) for name, does in kernels.items()
    ]
    new += [(linear, name, _by_row(call, getattr(linear, name))) for name in TYPED]
    new += [(conv, "reverse", _reverse(conv.reverse))]
    before = [(module, name, getattr(module, name)) for module, name, _ in new]
    try:
        for module, name, value in new:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


TYPED = ("gather_mm", "segment_mm")


class _Kernel:
    """Stands for an autograd function of DGL."""

    def __init__(self, call: Call, plain: Any, does: Callable[..., Any]) -> None:
        self._call, self._plain, self._does = call, plain, does

    def apply(self, *args: Any) -> Any:
        """Do what DGL's function does on the whole graph."""
        if self._call.paused:
            return self._plain.apply(*args)
        if not isinstance(args[0], ShardIndex):
            known = [p for a in args if (p := placement(a)) is not None]
            if known:
                raise ConfigError(
                    f"a DGL function works on rows of {known[0].kind.value} without the shard's "
                    "graph, so on this rank's alone: use gnn_dist.dgl_graph(shard, world), and for "
                    "sums and means over all nodes those of PyTorch"
                )
            return self._plain.apply(*args)
        self._call.check_gradient("DGL's message passing")
        with self._call.pause():
            return self._does(self._call, self._plain, *args)


def _reduced(
    call: Call, plain: Any, index: ShardIndex, op: str, reduce: str, *rows: Tensor | None
) -> Tensor:
    """Collective. Messages of rows of sources and of edges, reduced at the targets."""
    x, of_edges = rows
    graph = index.graph
    if graph.reversed:
        return _summed_at_sources(call, plain, index, op, reduce, x, of_edges)
    out = None if reduce != "sum" or x is None else _summed(call, graph, op, x, of_edges)
    if out is None:
        sources = None if x is None else call.lift(_owned(call, x), 0)
        if graph.num_edges() == 0 and reduce != "sum":
            out = _of_no_edges(plain, index, op, reduce, (sources, of_edges))
        else:
            out = plain.apply(index.real, op, reduce, sources, of_edges)
    return call.as_nodes(out, 0)


def _of_no_edges(
    plain: Any, index: ShardIndex, op: str, reduce: str, rows: tuple[Tensor | None, Tensor | None]
) -> Tensor:
    """Extremes of nothing, whose gradient DGL looks for in an edge.

    They depend on the rows all the same: the gradients of others' halo rows come here.
    """
    with torch.no_grad():
        out: Tensor = plain.apply(index.real, op, reduce, *rows)
    for part in rows:
        if part is not None:
            out = out + part[:0].sum()
    return out


def _summed(
    call: Call, graph: "ShardGraph", op: str, x: Tensor, of_edges: Tensor | None
) -> Tensor | None:
    """Collective. Sum by our kernels, while halo rows travel; None if they have no such sum."""
    if op not in ("copy_lhs", "mul") or x.dim() < 2 or not x.is_floating_point():
        return None
    weight = None
    if op == "mul":
        weight = None if of_edges is None else _weight(of_edges, x)
        if weight is None:
            return None
    structure, order = call.lists.sorted(graph.ends)
    if weight is not None and order is not None:
        weight = weight.index_select(0, order)
    block = Block(structure, call.next_exchange(exact=False))
    return aggregate(_owned(call, x).contiguous(), block, weight=weight)


def _weight(of_edges: Tensor, x: Tensor) -> Tensor | None:
    """Return a number for each edge, or for each edge and head; None if there are more.

    Ranks must agree, so shapes decide but for the number of edges.
    """
    if of_edges.dtype != x.dtype or of_edges.dim() != x.dim():
        return None
    if all(size == 1 for size in of_edges.shape[1:]):
        return of_edges.reshape(of_edges.size(0))
    if x.dim() == 3 and of_edges.shape[1:] == (x.size(1), 1):
        return of_edges.squeeze(2)
    return None


def _summed_at_sources(
    call: Call,
    plain: Any,
    index: ShardIndex,
    op: str,
    reduce: str,
    x: Tensor | None,
    of_edges: Tensor | None,
) -> Tensor:
    """Collective. The same of a reversed graph, whose targets may be on other ranks."""
    if reduce != "sum":
        raise ConfigError(f"a {reduce} along reversed edges is of nodes whose owners can only add")
    rows = None if x is None else _owned(call, x)
    return call.as_nodes(call.fold(plain.apply(index.real, op, reduce, rows, of_edges), 0), 0)


def _by_edge(
    call: Call,
    plain: Any,
    index: ShardIndex,
    op: str,
    lhs: Tensor | None,
    rhs: Tensor | None,
    *targets: str,
) -> Tensor:
    """Collective. Something for each edge, of rows of its ends and its own."""
    graph = index.graph
    far = "v" if graph.reversed else "u"
    operands: list[Tensor | None] = []
    for rows, target in zip((lhs, rhs), targets, strict=True):
        local = rows if rows is None or target == "e" else _owned(call, rows)
        operands.append(call.lift(local, 0) if target == far and local is not None else local)
    out: Tensor = plain.apply(index.real, op, *operands, *targets)
    return mark(out, Placement(Kind.EDGES, 0, graph.ends))


def _edge_softmax(
    call: Call, plain: Any, index: ShardIndex, score: Tensor, edges: Any, norm_by: str
) -> Tensor:
    """A softmax over the in-edges of each node, which are all here."""
    from dgl.base import is_all

    if norm_by != "dst" or index.graph.reversed:
        raise ConfigError(
            "edge_softmax over out-edges needs those of other ranks: norm_by must be 'dst'"
        )
    if not is_all(edges):
        raise ConfigError("edge_softmax of some edges is not known on a shard: leave eids out")
    out: Tensor = plain.apply(index.real, score, edges, norm_by)
    return mark(out, Placement(Kind.EDGES, 0, index.graph.ends))


def _refused(call: Call, plain: Any, *args: Any) -> Any:
    raise ConfigError(f"DGL's {plain.__name__} is not known on a shard")


def _owned(call: Call, rows: Tensor) -> Tensor:
    if rows.size(0) != call.num_owned:
        raise ConfigError(
            f"a graph's nodes must have a row each, {call.num_owned} on this rank, got "
            f"{tuple(rows.shape)}"
        )
    return rows


def _by_row(call: Call, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Have a function that transforms each row alone, by its type, return rows marked alike."""

    def by_row(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        known = [placement(rows) for rows in (a, *kwargs.values())]
        with call.pause():
            out = plain(a, b, **kwargs)
        placed = next((p.rows_only() for p in known if p is not None), None)
        return mark(out, placed)

    return by_row


def _reverse(plain: Callable[..., Any]) -> Callable[..., Any]:
    from gnn_dist.parallel.dgl_graph import ShardGraph

    def reverse(graph: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(graph, ShardGraph):
            return graph.reverse(*args, **kwargs)
        return plain(graph, *args, **kwargs)

    return reverse
