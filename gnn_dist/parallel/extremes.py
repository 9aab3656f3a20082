"""Maxima and minima over the rows of all ranks, with PyTorch's gradients."""

import torch
from torch import Tensor

from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import Kind, placement
from gnn_dist.parallel.tracing import refuse

__all__ = ["extreme_of_groups", "extreme_of_rows"]


def extreme_of_groups(
    call: Call, source: Tensor, index: Tensor, op: str, into: tuple[Tensor, int]
) -> Tensor:
    """Collective. Return the extreme of each group of rows, as `scatter_reduce` without `self`.

    Args:
        call: The forward at hand.
        source: Rows of this rank.
        index: Of the shape of `source`; the group of each element.
        op: `max` or `min`.
        into: What groups without rows have, and the dimension of the rows.

    Returns:
        A tensor like the first of `into`; equal sources of an extreme share its gradient.
    """
    base, dim = into
    index = index.expand_as(source)
    bound = _bound(source, op)
    local = torch.full_like(base, bound, requires_grad=False)
    local = local.scatter_reduce(dim, index, source.detach(), f"a{op}")
    best = call.extreme_over_ranks(local, op)
    some = call.extreme_over_ranks(
        torch.zeros_like(base, dtype=torch.bool).scatter(dim, index, value=True), "max"
    )
    value = torch.where(some, best, base.detach())
    if not source.is_floating_point():
        return value
    wins = source == best.gather(dim, index)
    ties = torch.zeros_like(local).scatter_add(dim, index, wins.to(local))
    share = 1 / call.sum_over_ranks(ties).gather(dim, index).clamp(min=1)
    taken = torch.zeros_like(local).scatter_add(dim, index, torch.where(wins, source * share, 0))
    return _with_gradient(value, call.sum_over_ranks(taken))


def extreme_of_rows(
    call: Call, x: Tensor, dims: list[int], op: str, *, keepdim: bool, first: bool
) -> Tensor:
    """Collective. Return the extreme over dimensions, that of the rows among them.

    Args:
        call: The forward at hand.
        x: A marked tensor.
        dims: What is reduced.
        op: `max` or `min`.
        keepdim: Leave them, with size one.
        first: Of equal rows the one with the lowest original id gets the gradient; False: they
            share it.
    """
    placed = placement(x)
    assert placed is not None  # noqa: S101 - the caller's condition
    reduce = torch.amax if op == "max" else torch.amin
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    if x.size(placed.dim) == 0:
        local = torch.full(shape, _bound(x, op), dtype=x.dtype, device=x.device)
    else:
        local = reduce(x.detach(), dims, keepdim=True)
    value = call.extreme_over_ranks(local, op)
    if x.requires_grad:
        wins = x == value
        if first:
            wins = wins & _lowest(call, x, wins, placed.dim)
        ties = call.sum_over_ranks(wins.sum(dims, keepdim=True).to(x.dtype))
        taken = torch.where(wins, x / ties, 0).sum(dims, keepdim=True)
        value = _with_gradient(value, call.sum_over_ranks(taken))
    return value if keepdim else value.squeeze(dims)


def _lowest(call: Call, x: Tensor, wins: Tensor, dim: int) -> Tensor:
    """Return where rows have the lowest original id of those that win."""
    placed = placement(x)
    if placed is None or placed.kind is not Kind.NODES:
        refuse(torch.max, "with a dimension gives its gradient to one of equal rows: use amax")
    ids = call.shard.node_id.view([-1 if d == dim else 1 for d in range(x.dim())])
    none = torch.iinfo(ids.dtype).max
    mine = torch.where(wins, ids, none)
    fallback = mine.new_full([1 if d == dim else n for d, n in enumerate(x.shape)], none)
    lowest = mine.amin(dim, keepdim=True) if x.size(dim) else fallback
    return ids == call.extreme_over_ranks(lowest, "min")


def _bound(x: Tensor, op: str) -> float | int | bool:
    """Return what any value is at least as extreme as."""
    if x.dtype == torch.bool:
        return op == "min"
    if x.is_floating_point():
        return float("-inf") if op == "max" else float("inf")
    info = torch.iinfo(x.dtype)
    return info.min if op == "max" else info.max


def _with_gradient(value: Tensor, taken: Tensor) -> Tensor:
    """Return a value whose gradient is that of what was taken for it."""
    return torch.where(value.isfinite(), value + (taken - taken.detach()), value)
