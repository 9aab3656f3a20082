"""Rules for reading rows by index, and for setting them.

A row read at the source of an edge may be another rank's: it is fetched.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.halo.node_rows import rows_of
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import EDGE_LISTS, Kind, Placement, edge_list, mark, placement
from gnn_dist.parallel.tables import (
    holds_original_ids,
    read_embedding,
    read_table,
    refuse_padding,
)
from gnn_dist.parallel.tracing import (
    Args,
    Kwargs,
    is_positional,
    is_rows,
    marked,
    operand,
    refuse,
    rule,
    three,
)

__all__: list[str] = []


@rule(Tensor.__getitem__)
def getitem(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """`x[index]`."""
    x, index = args
    placed = placement(x)
    if rows_of(x) is not None and holds_original_ids(index):
        return read_table(x, index, arange=True)
    if placed is not None and placed.kind in EDGE_LISTS:
        return _of_ends(call, func, x, index, placed)
    parts = index if isinstance(index, tuple) else (index,)
    if placed is None:
        return _of_table(call, func, x, index, parts)
    at, part = _part_at(parts, x.dim(), placed.dim)
    if part is None:
        return mark(func(x, index), placed.at(at))
    if isinstance(part, Tensor):
        part_dim = part.dim()
        rows = _rows_to_read(call, x, placed, part, func)
        out = func(rows, index)
        return _picked(call, out, placed, part, at) if part_dim == 1 else _several(out, placed)
    if _is_all(part, x.size(placed.dim)):
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


def _several(out: Tensor, placed: Placement) -> Tensor:
    return mark(out, None if placed.kind is Kind.NODES else placed.rows_only())


def _of_ends(call: Call, func: Any, x: Tensor, index: Any, placed: Placement) -> Any:
    """Sources, targets, some of the edges, or the edges reversed."""
    out = func(x, index)
    if isinstance(index, int):
        return _end(out, x, index % 2, placed.kind)
    if isinstance(index, list) and index == [1, 0]:
        return mark(out, edge_list(out, placed.kind, turned=True))
    parts = index if isinstance(index, tuple) else (index,)
    if len(parts) == 2 and isinstance(parts[0], int):
        whole = _end(x.select(0, parts[0]), x, parts[0] % 2, placed.kind)
        return getitem(call, func, (whole, parts[1]), {})
    everything = parts[0] is Ellipsis or (isinstance(parts[0], slice) and parts[0] == slice(None))
    if len(parts) == 2 and everything and out.dim() == 2:
        kept = call.select_edges(x, parts[1], out)
        return mark(out, edge_list(kept, placed.kind))
    return out


def _end(out: Tensor, ends: Tensor, which: int, kind: Kind) -> Tensor:
    sources = (which == 0) == (kind is Kind.ENDS)
    kind_of_one = Kind.SOURCES if sources else Kind.TARGETS
    return mark(out, Placement(kind_of_one, 0, ends if kind is Kind.ENDS else None))


@rule(Tensor.select, torch.select, torch._C._VariableFunctions.select)
def select(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """One place of a dimension."""
    x = operand(args, kwargs)
    dim = (args[1] if len(args) > 1 else kwargs["dim"]) % x.dim()
    at = args[2] if len(args) > 2 else kwargs["index"]
    index = (*[slice(None)] * dim, at) if dim else at
    return getitem(call, Tensor.__getitem__, (x, index), {})


@rule(Tensor.unbind, torch.unbind)
def unbind(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Every place of a dimension."""
    x = operand(args, kwargs)
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % x.dim()
    placed = placement(x)
    out = func(*args, **kwargs)
    if placed is None:
        return out
    if placed.kind in EDGE_LISTS and dim == 0:
        return tuple(_end(part, x, i, placed.kind) for i, part in enumerate(out))
    if placed.dim == dim and is_positional(placed):
        refuse(func, f"takes the rows of {placed.kind.value} one by one")
    if placed.dim == dim:
        return out
    return tuple(mark(part, placed.at(placed.dim - (dim < placed.dim))) for part in out)


@rule(Tensor.narrow, torch.narrow)
def narrow(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A range of a dimension."""
    x = operand(args, kwargs)
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
    _refuse_local_ids(func, kind)
    out = func(x, index)
    before = sum(not isinstance(p, int) for p in parts[:where])
    if part.dtype == torch.bool:
        return mark(out, Placement(Kind.SOME, before))
    return mark(out, kind.rows_only().at(before + kind.dim))


# torch_geometric puts functions of its own in place of torch.select and torch.index_select, which
# call those of torch._C.
@rule(Tensor.index_select, torch.index_select, torch._C._VariableFunctions.index_select)
def index_select(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows by a list of indices."""
    x, dim, index = three(args, kwargs, ("input", "dim", "index"))
    dim %= max(x.dim(), 1)
    placed, by = placement(x), placement(index)
    if placed is not None and placed.kind in EDGE_LISTS:
        if dim == 1:
            return _of_ends(call, Tensor.__getitem__, x, (slice(None), index), placed)
        return func(x, dim, index)
    if placed is None and by is not None and by.kind.holds_ids and x.size(dim) == call.num_owned:
        placed = Placement(Kind.NODES, dim)
    if placed is None:
        _refuse_local_ids(func, by)
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


@rule(Tensor.nonzero, torch.nonzero, torch.argwhere, Tensor.argwhere)
def nonzero(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Positions, which only serve to pick rows and to put them back."""
    x = operand(args, kwargs)
    placed = placement(x)
    out = func(*args, **kwargs)
    if placed is None or placed.kind.by_edge:
        return out
    if placed.kind is not Kind.NODES or x.dim() != 1:
        refuse(func, "returns positions of this rank's rows")
    for found in out if isinstance(out, tuple) else (out,):
        mark(found, Placement(Kind.PICKED, 0))
    return out


@rule(Tensor.index_copy_, Tensor.index_copy, torch.index_copy, Tensor.index_fill_)
def index_copy(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows put where they were picked."""
    x, dim, index = three(args, kwargs, ("input", "dim", "index"))
    placed, by = placement(x), placement(index)
    if placed is not None and placed.dim == dim % x.dim() and is_positional(placed):
        _check_put(call, func, placed, index)
    elif placed is None and by is not None and by.kind is not Kind.PICKED:
        refuse(func, "sets entries by the rows of this rank")
    out = func(*args, **kwargs)
    return out if placed is None else mark(out, placed)


def _check_put(call: Call, func: Any, placed: Placement, index: Any) -> None:
    """Refuse to set rows of nodes by anything that is not known to mean them."""
    by = placement(index)
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        return
    if by is not None and by.kind is Kind.SOURCES:
        # Loops are edges whose sources are owned. If so on all ranks, nothing is set elsewhere.
        if bool((index < call.num_owned).all()):
            return
        refuse(func, "sets rows at the sources of edges, which may be on other ranks")
    if by is None or by.kind not in (Kind.TARGETS, Kind.PICKED):
        refuse(func, f"sets rows of {placed.kind.value} by position")


@rule(F.embedding, torch.embedding)
def embedding(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Rows of a table; where it has a row for each node, these come from their owners."""
    index, weight = args[:2] if func is F.embedding else (args[1], args[0])
    placed = placement(index)
    if rows_of(weight) is not None and holds_original_ids(index):
        return read_embedding(func, index, weight, (args, kwargs))
    if rows_of(weight) is not None:
        refuse_padding(func, (args, kwargs))
        return getitem(call, Tensor.__getitem__, (weight, index), {})
    out = func(*args, **kwargs)
    if placed is None:
        return out
    _refuse_local_ids(func, placed)
    return mark(out, placed)


def _refuse_local_ids(func: Any, by: Placement | None) -> None:
    """Refuse to look up this rank's local ids in what is equal on all ranks."""
    if by is not None and by.kind.holds_ids:
        refuse(func, "looks up local ids of nodes, which depend on the partition,")


@rule(Tensor.gather, torch.gather, Tensor.take_along_dim, torch.take_along_dim)
def gather(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """An index for each element."""
    x, dim, index = three(args, kwargs, ("input", "dim", "index"))
    dim %= max(x.dim(), 1)
    placed, by = placement(x), placement(index)
    if placed is None and by is not None and by.kind.holds_ids and x.size(dim) == call.num_owned:
        placed = Placement(Kind.NODES, dim)
    if placed is None or placed.dim != dim:
        if placed is None:
            _refuse_local_ids(func, by)
        out = func(x, dim, index)
        known = placed or by
        return out if known is None else mark(out, known.rows_only())
    rows = _rows_to_read(call, x, placed, index, func)
    return _picked(call, func(rows, dim, index), placed, index, dim)


def _rows_to_read(call: Call, x: Tensor, placed: Placement, index: Tensor, func: Any) -> Tensor:
    """Return what an index of rows reads from: with halo rows where it holds sources."""
    by = placement(index)
    kind = None if by is None else by.kind
    if placed.kind is Kind.NODES and kind is Kind.SOURCES:
        return call.lift(x, placed.dim)
    own = placed.kind is Kind.NODES and kind in (Kind.TARGETS, Kind.PICKED)
    if not own and index.dtype != torch.bool and not placed.kind.by_edge:
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
    if placed is None and any(by) and x.dim() and x.size(0) == call.num_owned:
        placed = placement(call.as_nodes(x, 0))
    if placed is None and any(is_rows(p) for p in by):
        refuse(func, "sets entries by the rows of this rank")
    if placed is not None and is_positional(placed):
        _, part = _part_at(parts, x.dim(), placed.dim)
        if part is not None and not _is_all(part, x.size(placed.dim)):
            _check_put(call, func, placed, part)
    return func(*args)


def _is_all(part: Any, size: int) -> bool:
    """Return whether a slice takes everything."""
    return isinstance(part, slice) and part.indices(size) == (0, size, 1)
