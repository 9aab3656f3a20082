"""Rules for reading rows by index, and for summing rows by index.

A row read at the source of an edge may be another rank's: it is fetched. What is summed at sources
is sent to their owners, and what is summed by anything that is no node is summed over the ranks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.extremes import extreme_of_groups
from gnn_dist.parallel.placement import Kind, Placement, mark, placement
from gnn_dist.parallel.tracing import (
    follow,
    function_name,
    is_positional,
    is_rows,
    marked,
    refuse,
    rule,
)

__all__: list[str] = []

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

ENDS = (Kind.ENDS, Kind.REVERSED)


@rule(Tensor.__getitem__)
def getitem(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`x[index]`."""
    x, index = args
    placed = placement(x)
    if placed is not None and placed.kind in ENDS:
        return _of_ends(call, func, x, index, placed)
    parts = index if isinstance(index, tuple) else (index,)
    if placed is None:
        return _of_table(call, func, x, index, parts)
    at, part = _part_at(parts, x.dim(), placed.dim)
    if part is None:
        return mark(func(x, index), _unless_gone(placed, at))
    if isinstance(part, Tensor):
        part_dim = part.dim()
        rows = _rows_to_read(call, x, placed, part, func)
        new = tuple(_without(part) if p is part else p for p in parts)
        out = func(rows, new if isinstance(index, tuple) else new[0])
        return _picked(call, out, placed, part, at) if part_dim == 1 else _several(out, placed)
    if isinstance(part, slice) and part == slice(None):
        return mark(func(x, index), placed.at(at))
    if is_positional(placed):
        refuse(func, f"picks rows of {placed.kind.value} by position")
    out = func(x, index)
    if isinstance(part, int):
        return mark(out, None)
    return mark(out, Placement(placed.kind, at) if placed.kind.by_edge else None)


def _part_at(parts: tuple[Any, ...], num_dims: int, dim: int) -> tuple[int, Any]:
    """Return where a dimension is in the result of an index, and the part of the index there."""
    used = sum(p is not None and p is not Ellipsis for p in parts)
    full: list[Any] = []
    for part in parts:
        full += [slice(None)] * (num_dims - used) if part is Ellipsis else [part]
    at_in, at_out = 0, 0
    for part in full:
        if part is None:
            at_out += 1
            continue
        if at_in == dim:
            return at_out, part
        at_in += part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
        at_out += not isinstance(part, int)
    return at_out + dim - at_in, None


def _unless_gone(placed: Placement, at: int) -> Placement:
    return placed.at(at)


def _without(part: Tensor) -> Tensor:
    return part


def _several(out: Tensor, placed: Placement) -> Tensor:
    return mark(out, None if placed.kind is Kind.NODES else placed.rows_only())


def _of_ends(call: Call, func: Any, x: Tensor, index: Any, placed: Placement) -> Any:
    """Sources, targets, some of the edges, or the edges reversed."""
    out = func(x, index)
    if isinstance(index, int):
        return _end(out, x, index % 2, placed.kind)
    if isinstance(index, list) and index == [1, 0]:
        return mark(out, _turned(placed, out))
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) == 2 and isinstance(parts[0], int):
        whole = _end(x.select(0, parts[0]), x, parts[0] % 2, placed.kind)
        return getitem(call, func, (whole, parts[1]), {})
    everything = parts[0] is Ellipsis or (isinstance(parts[0], slice) and parts[0] == slice(None))
    if len(parts) == 2 and everything and out.dim() == 2:
        kept = call.select_edges(x, parts[1], out)
        return mark(out, Placement(placed.kind, 1, kept if placed.kind is Kind.ENDS else None))
    return out


def _end(out: Tensor, ends: Tensor, which: int, kind: Kind) -> Tensor:
    sources = (which == 0) == (kind is Kind.ENDS)
    kind_of_one = Kind.SOURCES if sources else Kind.TARGETS
    return mark(out, Placement(kind_of_one, 0, ends if kind is Kind.ENDS else None))


def _turned(placed: Placement, out: Tensor) -> Placement:
    turned = Kind.REVERSED if placed.kind is Kind.ENDS else Kind.ENDS
    return Placement(turned, 1, out if turned is Kind.ENDS else None)


@rule(Tensor.select, torch.select)
def select(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One place of a dimension."""
    x = args[0] if args else kwargs["input"]
    dim = (args[1] if len(args) > 1 else kwargs["dim"]) % x.dim()
    at = args[2] if len(args) > 2 else kwargs["index"]
    return getitem(call, Tensor.__getitem__, (x, (*[slice(None)] * dim, at)), {}) if dim else (
        getitem(call, Tensor.__getitem__, (x, at), {})
    )


@rule(Tensor.unbind, torch.unbind)
def unbind(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Every place of a dimension."""
    x = args[0] if args else kwargs["input"]
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % x.dim()
    placed = placement(x)
    out = func(*args, **kwargs)
    if placed is None:
        return out
    if placed.kind in ENDS and dim == 0:
        return tuple(_end(part, x, i, placed.kind) for i, part in enumerate(out))
    if placed.dim == dim and is_positional(placed):
        refuse(func, f"takes the rows of {placed.kind.value} one by one")
    if placed.dim == dim:
        return out
    return tuple(mark(part, placed.at(placed.dim - (dim < placed.dim))) for part in out)


@rule(Tensor.narrow, torch.narrow)
def narrow(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A range of a dimension."""
    x = args[0] if args else kwargs["input"]
    dim = (args[1] if len(args) > 1 else kwargs["dim"]) % x.dim()
    placed = placement(x)
    out = func(*args, **kwargs)
    if placed is None:
        return out
    if placed.dim == dim:
        if is_positional(placed):
            refuse(func, f"picks rows of {placed.kind.value} by position")
        return mark(out, Placement(placed.kind, dim))
    return mark(out, placed)


def _of_table(call: Call, func: Any, x: Tensor, index: Any, parts: tuple[Any, ...]) -> Any:
    """Rows of what is equal on all ranks, or of what the model made with a row per node."""
    known = [(i, part) for i, part in enumerate(parts) if placement(part) is not None]
    if not known:
        return func(x, index)
    where, part = known[0]
    kind = placement(part)
    assert kind is not None  # noqa: S101 - for mypy
    if kind.kind.holds_ids and x.dim() and where == 0 and x.size(0) == call.num_owned:
        nodes = Placement(Kind.NODES, 0)
        rows = _rows_to_read(call, x, nodes, part, func)
        return _picked(call, func(rows, index), nodes, part, 0)
    out = func(x, index)
    before = sum(not isinstance(p, int) for p in parts[:where])
    if part.dtype == torch.bool:
        return mark(out, Placement(Kind.SOME, before))
    return mark(out, kind.rows_only().at(before + kind.dim))


@rule(Tensor.index_select, torch.index_select)
def index_select(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows by a list of indices."""
    x, dim, index = _three(args, kwargs, ("input", "dim", "index"))
    dim %= max(x.dim(), 1)
    placed, by = placement(x), placement(index)
    if placed is not None and placed.kind in ENDS:
        if dim == 1:
            return _of_ends(call, Tensor.__getitem__, x, (slice(None), index), placed)
        return func(x, dim, index)
    if placed is None and by is not None and by.kind.holds_ids and x.size(dim) == call.num_owned:
        placed = Placement(Kind.NODES, dim)
    if placed is None:
        out = func(x, dim, index)
        return out if by is None else mark(out, by.rows_only().at(dim))
    if placed.dim != dim:
        return mark(func(x, dim, index), placed)
    rows = _rows_to_read(call, x, placed, index, func)
    return _picked(call, func(rows, dim, index), placed, index, dim)


@rule(Tensor.masked_select, torch.masked_select)
def masked_select(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Elements by a mask: how many, a rank alone knows."""
    out = func(*args, **kwargs)
    inputs = list(marked(args, kwargs))
    return mark(out, Placement(Kind.SOME, 0)) if inputs else out


@rule(Tensor.nonzero, torch.nonzero)
def nonzero(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Positions, which depend on the partition."""
    placed = placement(args[0] if args else kwargs["input"])
    if is_positional(placed):
        refuse(func, "returns positions of this rank's rows")
    return func(*args, **kwargs)


@rule(F.embedding, torch.embedding)
def embedding(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows of a table; ids of nodes are not among what a model may look up."""
    index = args[0] if func is F.embedding else args[1]
    placed = placement(index)
    out = func(*args, **kwargs)
    if placed is None:
        return out
    if placed.kind.holds_ids:
        refuse(func, "looks up local ids of nodes, which depend on the partition,")
    return mark(out, placed)


@rule(Tensor.gather, torch.gather, Tensor.take_along_dim, torch.take_along_dim)
def gather(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """An index for each element."""
    x, dim, index = _three(args, kwargs, ("input", "dim", "index"))
    dim %= max(x.dim(), 1)
    placed, by = placement(x), placement(index)
    if placed is None and by is not None and by.kind.holds_ids and x.size(dim) == call.num_owned:
        placed = Placement(Kind.NODES, dim)
    if placed is None or placed.dim != dim:
        out = func(x, dim, index)
        known = placed or by
        return out if known is None else mark(out, known.rows_only())
    rows = _rows_to_read(call, x, placed, index, func)
    return _picked(call, func(rows, dim, index), placed, index, dim)


def _rows_to_read(
    call: Call, x: Tensor, placed: Placement, index: Tensor, func: Any
) -> Tensor:
    """Return what an index of rows reads from: with halo rows where it holds sources."""
    by = placement(index)
    if placed.kind is Kind.NODES and by is not None and by.kind is Kind.SOURCES:
        return call.lift(x, placed.dim)
    if index.dtype == torch.bool or placed.kind.by_edge:
        return x
    if placed.kind is Kind.NODES and by is not None and by.kind is Kind.TARGETS:
        return x
    refuse(func, f"picks rows of {placed.kind.value} by position")
    return x


def _picked(call: Call, out: Tensor, placed: Placement, index: Tensor, dim: int) -> Tensor:
    """Mark rows that were picked."""
    by = placement(index)
    if placed.kind is Kind.NODES and by is not None and by.kind.holds_ids:
        return mark(out, Placement(Kind.EDGES, dim, by.ends))
    if placed.kind.by_edge:
        return mark(out, Placement(placed.kind, dim, call.selected(placed.ends, index)))
    return mark(out, Placement(Kind.SOME, dim))


@rule(Tensor.__setitem__)
def setitem(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`x[index] = value`."""
    x, index = args[:2]
    placed = placement(x)
    parts = index if isinstance(index, tuple) else (index,)
    by = [placement(part) for part in parts if isinstance(part, Tensor)]
    if any(p is not None and p.kind is Kind.SOURCES for p in by):
        refuse(func, "sets rows at the sources of edges, which may be on other ranks")
    if placed is None and any(is_rows(p) for p in by) and x.size(0) != call.num_owned:
        refuse(func, "sets entries by the rows of this rank")
    if placed is not None:
        _, part = _part_at(parts, x.dim(), placed.dim)
        whole = part is None or (isinstance(part, slice) and part == slice(None))
        targets = isinstance(part, Tensor) and (
            part.dtype == torch.bool or getattr(placement(part), "kind", None) is Kind.TARGETS
        )
        if is_positional(placed) and not whole and not targets:
            refuse(func, f"sets rows of {placed.kind.value} by position")
    return func(*args)


@rule(
    *(Tensor.scatter_add_, Tensor.scatter_add, torch.scatter_add, Tensor.index_add_),
    *(Tensor.index_add, torch.index_add, Tensor.scatter_reduce_, Tensor.scatter_reduce),
    *(torch.scatter_reduce, Tensor.scatter_, Tensor.scatter, torch.scatter),
    *(Tensor.index_reduce_, Tensor.index_reduce, torch.index_reduce),
)
def scatter(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows reduced by index."""
    base, dim, index = _three(args, kwargs, ("input", "dim", "index"))
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
    if placement(base) is not None and is_rows(placement(base)):
        refuse(func, f"reduces rows of {spread.kind.value} by position")
    return _pooled(call, func, (args, kwargs), name, (base, dim))


def _reduction(func: Any, args: Args, kwargs: Kwargs) -> str:
    name = func.__name__
    if "add" in name:
        return "sum"
    if "reduce" in name:
        given = kwargs.get("reduce", args[4] if len(args) > 4 else "")
        return {"amax": "max", "amin": "min", "add": "sum"}.get(given, given)
    return {"add": "sum"}.get(kwargs.get("reduce", ""), kwargs.get("reduce", "set"))


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
    sizes = torch.tensor([base.size(dim), -base.size(dim)])
    call.transport.all_reduce(sizes, "max").wait()
    if sizes[0] != -sizes[1]:
        refuse(func, f"reduces into {base.size(dim)} rows on this rank, others on others,")
    if name == "sum":
        fresh = torch.zeros_like(base)
        rest = {k: v for k, v in kwargs.items() if k not in ("input", "self")}
        total = call.sum_over_ranks(getattr(Tensor, func.__name__)(fresh, *args[1:], **rest))
        return mark(base.add_(total) if func.__name__.endswith("_") else base + total, None)
    if name in ("max", "min"):
        _, _, index = _three(args, kwargs, ("input", "dim", "index"))
        source = args[3] if len(args) > 3 else kwargs["src"]
        return mark(extreme_of_groups(call, source, index, name, into), None)
    refuse(func, f"reduces ({name or 'without a reduction'}) rows of this rank into a few")
    return base


@rule(Tensor.bincount, torch.bincount)
def bincount(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Counts by index."""
    x = args[0] if args else kwargs["input"]
    placed = placement(x)
    if placed is None:
        return func(*args, **kwargs)
    if placed.kind not in (Kind.SOURCES, Kind.TARGETS):
        raise ConfigError(f"{function_name(func)} counts this rank's rows only: use scatter")
    count = func(x, minlength=call.shard.structure.num_src)
    if placed.kind is Kind.SOURCES:
        count = call.fold(count.double(), 0).long()  # whole numbers up to 2^53
    return mark(count[: call.num_owned], Placement(Kind.NODES, 0))


def _three(args: Args, kwargs: Kwargs, names: tuple[str, str, str]) -> tuple[Any, Any, Any]:
    """Return a function's first three arguments, by position or by name."""
    given = list(args[:3])
    for name in names[len(given) :]:
        given.append(kwargs[name])
    return given[0], given[1], given[2]
