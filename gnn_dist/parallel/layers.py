"""Message-passing layers of PyTorch Geometric on a shard: on our kernels where they only sum."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from gnn_dist.halo.aggregate import REDUCES, aggregate
from gnn_dist.halo.block import Block
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, mark, placement

__all__ = [
    "compiled_modules",
    "inside",
    "message_passing_layers",
    "not_compiled",
    "of_many_rows",
    "row_by_row",
    "row_by_row_modules",
    "single_element_norms",
]

# Layers whose message is the source's row, times an argument of this name where it is given.
# What counts is the function itself: a subclass with another message is not among them.
WEIGHT_OF = {
    "APPNP": "edge_weight",
    "ARMAConv": "edge_weight",
    "ChebConv": "norm",
    "ClusterGCNConv": "edge_weight",
    "GATConv": "alpha",
    "GATv2Conv": "alpha",
    "GCN2Conv": "edge_weight",
    "GCNConv": "edge_weight",
    "GINConv": "",
    "GatedGraphConv": "edge_weight",
    "GraphConv": "edge_weight",
    "LGConv": "edge_weight",
    "MFConv": "",
    "MixHopConv": "edge_weight",
    "PDNConv": "edge_weight",
    "SAGEConv": "",
    "SGConv": "edge_weight",
    "SSGConv": "edge_weight",
    "SimpleConv": "edge_weight",
    "TAGConv": "edge_weight",
}
HOOKS = ("propagate", "message", "aggregate", "message_and_aggregate")


def message_passing_layers(model: nn.Module) -> list[Any]:
    """Return the layers of a model that pass messages."""
    from torch_geometric.nn import MessagePassing

    return [module for module in model.modules() if isinstance(module, MessagePassing)]


@contextmanager
def inside(layer: Any, call: Call) -> Iterator[None]:
    """Have a layer work on a shard while this lasts."""
    from torch_geometric.nn import MessagePassing

    made = {
        "propagate": _propagate(layer, call, layer.propagate),
        "edge_updater": _of_edges(layer, call, layer.edge_updater),
    }
    if type(layer).aggregate is MessagePassing.aggregate:
        made["aggregate"] = _aggregate(layer, call, layer.aggregate)
    # An attribute of the instance hides the class's method until it is deleted.
    vars(layer).update(made)
    try:
        yield
    finally:
        for name in made:
            delattr(layer, name)


@contextmanager
def row_by_row(module: nn.Module, call: Call) -> Iterator[None]:
    """Have a module that maps each row alone, whatever it does to them meanwhile, run unseen."""
    plain = module.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with call.pause():
            return mark(plain(x, *args, **kwargs), placement(x))

    vars(module)["forward"] = forward
    try:
        yield
    finally:
        del module.forward


def row_by_row_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a model that sort rows by type and put them back."""
    from torch_geometric.nn import HeteroLinear

    return [module for module in model.modules() if isinstance(module, HeteroLinear)]


@contextmanager
def not_compiled(module: nn.Module) -> Iterator[None]:
    """Have what `torch.compile` has made of a module run as written, so that it can be followed."""
    own = vars(module)
    plain = (
        {"forward": module._orig_mod} if _is_optimized(module) else {"_compiled_call_impl": None}
    )
    before = {name: own[name] for name in plain}
    own.update(plain)
    try:
        yield
    finally:
        own.update(before)


def compiled_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules that `torch.compile`, or their `compile`, has compiled."""
    return [
        module
        for module in model.modules()
        if _is_optimized(module) or vars(module).get("_compiled_call_impl") is not None
    ]


def _is_optimized(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule"  # to import it is to import the compiler


@contextmanager
def of_many_rows(module: Any) -> Iterator[None]:
    """Have a batch norm count the graph's rows, where it would do without statistics of one."""
    before, module.allow_single_element = module.allow_single_element, False
    try:
        yield
    finally:
        module.allow_single_element = before


def single_element_norms(model: nn.Module) -> list[nn.Module]:
    """Return the batch norms of a model that ask whether a rank has more than one row."""
    from torch_geometric.nn import BatchNorm

    norms = (m for m in model.modules() if isinstance(m, BatchNorm) and m.allow_single_element)
    return list(norms)


def _aggregate(layer: Any, call: Call, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Have any aggregation of in-edges, which are all here, run as on one machine."""

    def aggregate(inputs: Any, index: Any, *args: Any, **kwargs: Any) -> Any:
        placed = placement(index)
        if placed is None or placed.kind is not Kind.TARGETS or args:
            return plain(inputs, index, *args, **kwargs)
        size = kwargs.get("dim_size")
        with call.all_here():
            if index.numel() or size != call.num_owned:
                out = plain(inputs, index, **kwargs)
            else:
                # Some aggregations fail where there is no message at all: one of zeros, to a node
                # that is left away, has the others do what they do for a node without any.
                shape = [1 if n == 0 else n for n in inputs.shape]
                kwargs = {**kwargs, "dim_size": size + 1, "ptr": None}
                nothing = inputs.new_zeros(shape) + inputs.sum()  # which has a gradient, too
                out = plain(nothing, index.new_tensor([size]), **kwargs)
                out = out.narrow(layer.node_dim, 0, size)
        return _marked_nodes(layer, call, out)

    return aggregate


def _propagate(layer: Any, call: Call, plain: Callable[..., Any]) -> Callable[..., Any]:
    whole = _of_edges(layer, call, plain)

    def propagate(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
        with call.pause():
            weight = _weight(layer, call, edge_index, kwargs)
            if weight is not None:
                call.check_gradient(type(layer).__name__)
                return _summed(layer, call, edge_index, kwargs, weight)
        return _marked_nodes(layer, call, whole(edge_index, size=size, **kwargs))

    return propagate


def _marked_nodes(layer: Any, call: Call, out: Any) -> Any:
    """Mark what a layer returns for each node, where it is not marked yet."""
    if isinstance(out, Tensor) and out.dim() and placement(out) is None:
        dim = layer.node_dim % out.dim()
        if out.size(dim) == call.num_owned:
            return call.as_nodes(out, dim)
    return out


def _of_edges(layer: Any, call: Call, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Have what a function draws follow the edges it is given."""

    def entry(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        call.check_gradient(type(layer).__name__)
        placed = placement(edge_index)
        before = call.ends
        call.ends = edge_index if placed is not None and placed.kind is Kind.ENDS else None
        try:
            return plain(edge_index, *args, **kwargs)
        finally:
            call.ends = before

    return entry


@cache
def _known_message(message: Any) -> str | None:
    """Return the name of the weight in a message that our kernels compute; None if it is none."""
    from torch_geometric.nn import MessagePassing, conv

    for name, weight in WEIGHT_OF.items():
        if message is getattr(conv, name).message:
            return weight
    return "" if message is MessagePassing.message else None


def _weight(
    layer: Any, call: Call, edge_index: Any, kwargs: dict[str, Any]
) -> tuple[Tensor | None] | None:
    """Return the weight (or no weight) of a sum that our kernels compute; None if they do not."""
    from torch_geometric.nn import MessagePassing

    kind = type(layer)
    placed = placement(edge_index)
    if placed is None or placed.kind is not Kind.ENDS or layer.flow != "source_to_target":
        return None
    name = _known_message(kind.message)
    same = all(
        getattr(kind, part) is getattr(MessagePassing, part) for part in ("aggregate", "update")
    )
    reduce = {"add": "sum"}.get(layer.aggr, layer.aggr) if isinstance(layer.aggr, str) else None
    if name is None or not same or reduce not in REDUCES or layer.explain:
        return None
    if getattr(layer, "decomposed_layers", 1) > 1 or any(
        getattr(layer, f"_{part}_forward{pre}_hooks", None)
        for part in HOOKS
        for pre in ("", "_pre")
    ):
        return None
    weight = kwargs.get(name) if name else None
    x = _source(kwargs.get("x"))
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.size(0) != call.num_owned:
        return None
    rows = placement(x)
    if rows is not None and (rows.kind is not Kind.NODES or rows.dim != 0):
        return None  # as many rows by chance, on this rank
    if x.dim() < 2 or layer.node_dim % x.dim() != 0:
        return None
    if weight is not None and (
        not isinstance(weight, Tensor)
        or reduce in ("max", "min")
        or weight.dtype != x.dtype
        or not (weight.dim() == 1 or (weight.dim() == 2 and weight.shape[1:] == x.shape[1:2]))
        or (weight.dim() == 2 and x.dim() < 3)
        or (weight.dim() == 1 and x.dim() > 2)
    ):
        return None
    return (weight,)


def _source(x: Any) -> Any:
    return x[0] if isinstance(x, tuple | list) else x


def _summed(
    layer: Any,
    call: Call,
    edge_index: Tensor,
    kwargs: dict[str, Any],
    given: tuple[Tensor | None],
) -> Tensor:
    """Collective. Aggregate by our kernels, while halo rows travel."""
    structure, order = call.lists.sorted(edge_index)
    [weight] = given
    if weight is not None and order is not None:
        weight = weight.index_select(0, order)
    # As in `Call.lift`: no policy applies to what has no gradient in training.
    exact = call.with_gradient and not torch.is_grad_enabled()
    block = Block(structure, call.next_exchange(exact=exact))
    reduce = "sum" if layer.aggr == "add" else layer.aggr
    out = aggregate(_source(kwargs["x"]).contiguous(), block, reduce=reduce, weight=weight)
    return call.as_nodes(out, 0)
