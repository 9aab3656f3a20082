"""Rules for functions that move, join or rename dimensions, and for what only looks at a tensor."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import EDGE_LISTS, Kind, Placement, edge_list, mark, placement
from gnn_dist.parallel.tracing import Args, Kwargs, follow, marked, operand, refuse, reshaped, rule

__all__: list[str] = []


def _getter(name: str) -> Any:
    """Return the function by which an attribute of tensors is read."""
    return getattr(Tensor, name).__get__


@rule(
    *(Tensor.clone, torch.clone, Tensor.detach, torch.detach, Tensor.contiguous, Tensor.long),
    *(Tensor.int, Tensor.to, Tensor.type, Tensor.cpu, Tensor.cuda, Tensor.requires_grad_),
    *(Tensor.type_as, _getter("data"), Tensor.detach_, Tensor.pin_memory),
    *(Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
)
def same(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The same values."""
    out = func(*args, **kwargs)
    placed = placement(args[0])
    if placed is None or not isinstance(out, Tensor):
        return out
    if placed.kind.holds_ids and out.is_floating_point():
        refuse(func, "computes with local ids of nodes, which depend on the partition,")
    return mark(out, placed)


@rule(
    *(Tensor.view, Tensor.reshape, torch.reshape, Tensor.flatten, torch.flatten),
    *(Tensor.unflatten, torch.unflatten, Tensor.view_as, Tensor.reshape_as),
)
def view(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Other dimensions around the rows."""
    tensor = operand(args, kwargs)
    placed = placement(tensor)
    if placed is None:
        return func(*args, **kwargs)
    if tensor.numel() == 0:
        return _empty_view(func, args, kwargs, placed)
    out = func(*args, **kwargs)
    dim = reshaped(out, tensor, placed.dim)
    if dim is not None and placed.kind is not Kind.SOME:
        return mark(out, placed.at(dim))
    # Rows joined with dimensions after them: that many more rows, of which none is known.
    before = prod(tensor.shape[: placed.dim])
    joined = [d for d in range(out.dim()) if prod(out.shape[:d]) == before]
    return mark(out, Placement(Kind.SOME, joined[0] if joined else 0))


def _empty_view(func: Any, args: Args, kwargs: Kwargs, placed: Placement) -> Tensor:
    """View no rows as a rank with rows does: a size of -1 follows from the other dimensions."""
    tensor = operand(args, kwargs)
    sizes = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
    if func in (Tensor.view, Tensor.reshape, torch.reshape) and -1 in sizes and 0 in sizes:
        known = prod(n for n in sizes if n > 0)
        rest = prod(n for d, n in enumerate(tensor.shape) if d != placed.dim)
        out = tensor.reshape([max(rest // known, 1) if n == -1 else n for n in sizes])
    else:
        out = func(*args, **kwargs)
    dims = [dim for dim in range(out.dim()) if out.size(dim) == 0]
    return mark(out, placed.at(placed.dim if placed.dim in dims else dims[0]) if dims else None)


@rule(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.broadcast_to)
def expand(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """More dimensions on the left."""
    out = func(*args, **kwargs)
    placed = placement(args[0])
    if placed is None:
        others = list(marked(args[1:], {}))
        return follow(out, others, func) if others else out
    return mark(out, placed.at(out.dim() - args[0].dim() + placed.dim))


@rule(Tensor.unsqueeze, torch.unsqueeze)
def unsqueeze(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One dimension more."""
    out = func(*args, **kwargs)
    tensor, dim = _with_dim(args, kwargs)
    placed = placement(tensor)
    if placed is None:
        return out
    return mark(out, placed.at(placed.dim + (dim % out.dim() <= placed.dim)))


@rule(Tensor.squeeze, torch.squeeze)
def squeeze(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Dimensions of size one less; never that of the rows, of which a rank may have one."""
    tensor, dim = _with_dim(args, kwargs)
    placed = placement(tensor)
    if placed is None:
        return func(*args, **kwargs)
    if dim is None:
        dims = [d for d in range(tensor.dim()) if tensor.size(d) == 1 and d != placed.dim]
    else:
        dims = [d % tensor.dim() for d in (dim if isinstance(dim, tuple | list) else [dim])]
        dims = [d for d in dims if tensor.size(d) == 1 and d != placed.dim]
    out = tensor.squeeze(dims)
    return mark(out, placed.at(placed.dim - sum(d < placed.dim for d in dims)))


@rule(
    *(Tensor.transpose, torch.transpose, Tensor.permute, torch.permute, Tensor.t, torch.t),
    *(Tensor.movedim, torch.movedim, torch.moveaxis, Tensor.moveaxis, torch.swapaxes),
    *(Tensor.swapaxes, _getter("T"), _getter("mT"), Tensor.swapdims, torch.swapdims),
)
def permute(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The dimensions in another order."""
    out = func(*args, **kwargs)
    tensor = operand(args, kwargs)
    placed = placement(tensor)
    if placed is None:
        return out
    # A tensor of as many dimensions, each of another size, tells where each of them goes.
    sizes = tuple(range(2, tensor.dim() + 2))
    shadow = torch.empty(sizes, device="meta")
    named = {} if args else {"input": shadow}
    turned = func(*((shadow, *args[1:]) if args else ()), **{**kwargs, **named})
    where = list(turned.shape).index(sizes[placed.dim])
    if placed.kind in EDGE_LISTS:
        return mark(out, None if where == 0 else placed)
    return mark(out, placed.at(where))


@rule(torch.cat, torch.concat, torch.concatenate, torch.hstack, torch.vstack)
def cat(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Along the rows, or beside them."""
    out = func(*args, **kwargs)
    parts = list(args[0] if args else kwargs["tensors"])
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
    if func is torch.hstack:
        dim = 1 if out.dim() > 1 else 0
    dim %= max(out.dim(), 1)
    known = [(p, q) for p in parts if (q := placement(p)) is not None]
    if not known:
        return out
    kinds = {placed.kind for _, placed in known}
    ids = {kind for kind in kinds if kind.holds_ids}
    along = dim == known[0][1].dim
    if ids and along:
        if len(ids) > 1:
            refuse(func, "joins edges and reversed edges, whose targets may be on other ranks")
        # What is joined without a mark are owned nodes: the model's new loops.
        return mark(out, Placement(ids.pop(), known[0][1].dim, _ends_of(out, known[0][1])))
    # Behind values of edges stand those of the nodes' loops.
    if along and Kind.NODES in kinds and known[0][1].kind is not Kind.EDGES:
        refuse(func, "puts rows beside those of this rank's nodes")
    if along:
        return mark(out, Placement(Kind.EDGES, dim))
    return follow(out, known, func)


def _ends_of(out: Tensor, placed: Placement) -> Tensor | None:
    return out if placed.kind is Kind.ENDS else None


@rule(torch.stack)
def stack(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One dimension more; sources and targets make an edge list."""
    out = func(*args, **kwargs)
    parts = list(args[0] if args else kwargs["tensors"])
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.dim()
    known = [q for p in parts if (q := placement(p)) is not None]
    if not known:
        return out
    kinds = [placed.kind for placed in known]
    if dim == 0 and kinds in ([Kind.SOURCES, Kind.TARGETS], [Kind.TARGETS, Kind.SOURCES]):
        return mark(out, edge_list(out, turned=kinds[0] is Kind.TARGETS))
    first = known[0].rows_only()
    return mark(out, first.at(first.dim + (dim <= first.dim)))


@rule(Tensor.flip, torch.flip, Tensor.roll, torch.roll, torch.fliplr, torch.flipud)
def turn_round(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Edges may be reversed; rows may not be moved."""
    out = func(*args, **kwargs)
    tensor = operand(args, kwargs)
    placed = placement(tensor)
    if placed is None:
        return out
    name = "shifts" if func in (Tensor.roll, torch.roll) else "dims"
    dims = args[-1] if len(args) > 1 else kwargs.get("dims", kwargs.get(name))
    dims = [d % out.dim() for d in (dims if isinstance(dims, tuple | list) else [dims])]
    flips = func in (Tensor.flip, torch.flip, torch.flipud)
    if placed.kind in EDGE_LISTS and dims == [0] and flips:
        return mark(out, edge_list(out, placed.kind, turned=True))
    if placed.dim in dims:
        refuse(func, f"moves the rows of {placed.kind.value}")
    return mark(out, placed.rows_only())


@rule(
    *(Tensor.new_ones, Tensor.new_full, Tensor.new_empty, Tensor.new_tensor),
)
def new(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A tensor of the same dtype: one row for each row if it has as many."""
    out: Tensor = func(*args, **kwargs)
    placed = placement(args[0])
    if placed is not None and placed.kind is Kind.NODES and out.dim() > 0:
        dim = placed.dim if placed.dim < out.dim() else 0
        if out.size(dim) == args[0].size(placed.dim):
            return mark(out, Placement(Kind.NODES, dim, guess=True))
    return out


@rule(torch.zeros, Tensor.new_zeros)
def zeros(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Collective for whole numbers in a row, by which models say that all nodes are of one graph.

    They are rows of nodes if they are as many as nodes on all ranks, so that none is taken for
    such that has as many by chance.
    """
    out: Tensor = func(*args, **kwargs)
    given = placement(args[0]) if func is Tensor.new_zeros else None
    if given is not None and not given.kind.holds_ids:
        return new(call, lambda *_, **__: out, args, kwargs)
    if out.dtype == torch.int64 and out.dim() == 1:
        [as_nodes] = call.agreed(out.size(0) == call.num_owned)
        if as_nodes:
            return mark(out, Placement(Kind.NODES, 0, guess=True))
    return out


@rule(F.one_hot)
def one_hot(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One dimension more on the right."""
    out = func(*args, **kwargs)
    placed = placement(args[0])
    return out if placed is None else mark(out, placed.rows_only())


@rule(Tensor.numel)
def numel(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Edge lists and what says for each node where it belongs are never empty.

    It is asked before the maximum is taken, for the number of nodes or groups.
    """
    count: int = func(*args, **kwargs)
    placed = placement(args[0])
    if count or placed is None:
        return count
    if placed.kind in EDGE_LISTS:
        return call.num_owned
    is_index = placed.kind is Kind.NODES and args[0].dtype == torch.int64
    return int(is_index)  # the graph has nodes, if not here


@rule(Tensor.tolist, Tensor.numpy, Tensor.__array__)
def leave(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """What leaves PyTorch is not seen any more."""
    placed = placement(args[0])
    if placed is not None:
        raise ConfigError(
            f"Tensor.{func.__name__} of rows of {placed.kind.value}: what is computed of them "
            "outside PyTorch would depend on the partition"
        )
    return func(*args, **kwargs)


def _with_dim(args: Args, kwargs: Kwargs) -> tuple[Tensor, Any]:
    """Return a function's tensor and the dimension it is given."""
    return operand(args, kwargs), args[1] if len(args) > 1 else kwargs.get("dim")
