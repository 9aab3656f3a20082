"""Rules for summing rows by index.

All in-edges of an owned node are here, so what is reduced at targets is whole. What is summed at
sources is sent to their owners; what is summed by anything that is no node, over the ranks.
"""

from typing import Any

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.extremes import extreme_of_groups
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.parallel.tracing import (
    Args,
    Kwargs,
    follow,
    function_name,
    is_rows,
    marked,
    operand,
    refuse,
    rule,
    three,
)

__all__: list[str] = []


@rule(
    *(Tensor.scatter_add_, Tensor.scatter_add, torch.scatter_add, Tensor.index_add_),
    *(Tensor.index_add, torch.index_add, Tensor.scatter_reduce_, Tensor.scatter_reduce),
    *(torch.scatter_reduce, Tensor.scatter_, Tensor.scatter, torch.scatter),
    *(Tensor.index_reduce_, Tensor.index_reduce, torch.index_reduce),
)
def scatter(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows reduced by index."""
    base, dim, index = three(args, kwargs, ("input", "dim", "index"))
    dim %= max(base.dim(), 1)
    by, name = placement(index), _reduction(func, args, kwargs)
    source = args[3] if len(args) > 3 else kwargs.get("src", kwargs.get("source"))
    of = placement(source) if isinstance(source, Tensor) else None
    if by is not None and by.kind is Kind.SOURCES:
        if name != "sum":
            refuse(func, f"reduces ({name}) at the sources of edges, whose owners can only add,")
        return _at_sources(call, func, args, kwargs, base, dim)
    if by is not None and by.kind is Kind.TARGETS:
        out = func(*args, **kwargs)
        return mark(out, Placement(Kind.NODES, dim))
    spread = next((p for p in (of, by) if p is not None and p.dim == dim), None)
    if spread is None:
        out = func(*args, **kwargs)
        inputs = [(t, p) for t, p in marked(args, kwargs) if t.dim() == out.dim()]
        return follow(out, inputs, func) if inputs else out
    into = placement(base)
    if into is not None and is_rows(into) and not into.guess:
        refuse(func, f"reduces rows of {spread.kind.value} by position")
    return _pooled(call, func, (args, kwargs), name, (base, dim))


def _reduction(func: Any, args: Args, kwargs: Kwargs) -> str:
    name: str = func.__name__
    if "add" in name:
        return "sum"
    if "reduce" in name:
        given = str(kwargs.get("reduce", args[4] if len(args) > 4 else ""))
        return {"amax": "max", "amin": "min", "add": "sum"}.get(given, given)
    named: str = kwargs.get("reduce", "set")
    return {"add": "sum"}.get(named, named)


def _at_sources(
    call: Call, func: Any, args: Args, kwargs: Kwargs, base: Tensor, dim: int
) -> Tensor:
    """Sum at sources: over all sources here, then at their owners."""
    if base.size(dim) != call.num_owned:
        refuse(func, "sums at the sources of edges into other rows than one per node")
    shape = list(base.shape)
    shape[dim] = call.shard.structure.num_src
    wide = base.new_zeros(shape)
    rest = {k: v for k, v in kwargs.items() if k not in ("input", "self")}
    sums = getattr(Tensor, func.__name__)(wide, *args[1:], **rest)
    folded = call.fold(sums, dim)
    inplace = func.__name__.endswith("_")
    out = base.add_(folded) if inplace else base + folded
    return mark(out, Placement(Kind.NODES, dim))


def _pooled(
    call: Call,
    func: Any,
    given: tuple[Args, Kwargs],
    name: str,
    into: tuple[Tensor, int],
) -> Tensor:
    """Rows of all ranks reduced into a few, equal on all ranks."""
    base, dim = into
    args, kwargs = given
    sizes = torch.tensor([base.size(dim), -base.size(dim)], device=base.device)
    call.transport.all_reduce(sizes, "max").wait()
    if sizes[0] != -sizes[1]:
        refuse(func, f"reduces into {base.size(dim)} rows on this rank, others on others,")
    if name == "sum":
        fresh = torch.zeros_like(base)
        rest = {k: v for k, v in kwargs.items() if k not in ("input", "self")}
        total = call.sum_over_ranks(getattr(Tensor, func.__name__)(fresh, *args[1:], **rest))
        return mark(base.add_(total) if func.__name__.endswith("_") else base + total, None)
    if name not in ("max", "min"):
        refuse(func, f"reduces ({name or 'without a reduction'}) rows of this rank into a few")
    _, _, index = three(args, kwargs, ("input", "dim", "index"))
    source = args[3] if len(args) > 3 else kwargs["src"]
    return mark(extreme_of_groups(call, source, index, name, into), None)


@rule(Tensor.bincount, torch.bincount)
def bincount(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Counts by index."""
    x = operand(args, kwargs)
    placed = placement(x)
    if placed is None:
        return func(*args, **kwargs)
    if placed.kind not in (Kind.SOURCES, Kind.TARGETS):
        raise ConfigError(f"{function_name(func)} counts this rank's rows only: use scatter")
    count = func(x, minlength=call.shard.structure.num_src)
    if placed.kind is Kind.SOURCES:
        count = call.fold(count.double(), 0).long()  # whole numbers up to 2^53
    return mark(count[: call.num_owned], Placement(Kind.NODES, 0))
