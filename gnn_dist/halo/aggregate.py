"""The one differentiable aggregation, over owned sources and halo sources.

    forward     exchange x          -->  .............. halo rows
                out  = A_owned x         out += A_halo halo
    backward    grad_halo = A_halo' g;  exchange  -->  .............. boundary rows
                grad_x = A_owned' g;    weight gradients;   grad_x += boundary rows

Halo gradients come first in the backward, so that they travel while the rest is computed.
`A = [A_owned | A_halo]` are the columns of the shard's structure (or of the same with self-loops).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import LayerExchange, Pending, halo_exchange
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.spmm import sddmm, spmm_extreme, spmm_sum, tie_counts, tie_gradient

__all__ = ["REDUCES", "aggregate", "all_sources"]

REDUCES = ("sum", "mean", "max", "min")


def aggregate(
    x: Tensor,
    block: Block,
    *,
    reduce: str = "sum",
    weight: Tensor | None = None,
    self_loops: bool = False,
) -> Tensor:
    """Collective. Reduce, for each destination, weight * x over its in-edges.

    Args:
        x: (n, ...) rows of the destinations, or (num_src, ...) where the block has no exchange.
        block: The layer's graph.
        reduce: `sum`, `mean`, `max` or `min`. A destination without in-edges gets zeros.
        weight: (nnz,), or (nnz, H) with x (n, H, ...); for `sum` and `mean` only. Differentiable.
        self_loops: Use `structure.csr.with_self_loops`; `weight` is then in its order.

    Returns:
        (num_dst, ...), like `x`.

    Raises:
        ConfigError: An unknown reduction, or a weighted one that is not defined.
        GraphError: `x` or `weight` has the wrong number of rows.
    """
    csr = block.structure.csr
    if self_loops:
        csr = csr.with_self_loops
    _check(x, block, csr, reduce, weight)
    if reduce in ("max", "min"):
        return _Extreme.apply(x, csr, block.exchange, reduce)  # type: ignore[no-any-return, no-untyped-call]
    out: Tensor = _Sum.apply(x, weight, csr, block.exchange)  # type: ignore[no-untyped-call]
    if reduce == "mean":
        out = out / csr.counts.clamp(min=1).to(out.dtype).view(-1, *(1,) * (out.dim() - 1))
    return out


def all_sources(x: Tensor, block: Block) -> Tensor:
    """Collective. Return the rows (num_src, ...) of all sources, differentiably.

    For messages that are not a weighted sum of source rows. `aggregate` is faster where it serves.
    """
    if block.exchange is None:
        return x
    return torch.cat([x, halo_exchange(x, block.exchange)])


def _check(x: Tensor, block: Block, csr: CSR, reduce: str, weight: Tensor | None) -> None:
    if reduce not in REDUCES:
        raise ConfigError(f"reduce must be one of {', '.join(REDUCES)}, got {reduce!r}")
    if x.size(0) != block.num_rows_in:
        raise GraphError(f"x must have {block.num_rows_in} rows for this block, got {x.size(0)}")
    if weight is None:
        return
    if reduce in ("max", "min"):
        raise ConfigError(f"weights are for sum and mean, got reduce={reduce!r}")
    if weight.size(0) != csr.nnz:
        raise GraphError(f"weight must have one row per edge ({csr.nnz}), got {weight.size(0)}")


class _Halves(NamedTuple):
    """The columns of a structure that are here, and those that arrive."""

    here: SubCSR
    halo: SubCSR | None


def _halves(csr: CSR, exchange: LayerExchange | None) -> _Halves:
    if exchange is None:
        return _Halves(SubCSR(csr, None), None)
    return _Halves(*csr.split_columns(exchange.plan.num_owned))


def _take(weight: Tensor | None, halves: _Halves) -> tuple[Tensor | None, Tensor | None]:
    """Split edge weights as the structure is split."""
    if weight is None or halves.halo is None:
        return weight, None
    return halves.here.take(weight), halves.halo.take(weight)


class _Sum(torch.autograd.Function):
    """Weighted sum over all sources. Collective, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, csr: CSR, exchange: Any) -> Tensor:
        halves = _halves(csr, exchange)
        here_weight, halo_weight = _take(weight, halves)
        pending: Pending | None = exchange.forward.start(x) if exchange is not None else None
        out = spmm_sum(halves.here.csr, x, here_weight)
        rows = None
        if pending is not None and halves.halo is not None:
            rows = pending.wait()
            out = out.add_(spmm_sum(halves.halo.csr, rows, halo_weight))
        ctx.exchange, ctx.halves = exchange, halves
        # Source rows are needed again only where the weights have a gradient.
        keep = weight is not None and weight.requires_grad
        ctx.save_for_backward(weight, x if keep else None, rows if keep else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x, rows = ctx.saved_tensors
        halves: _Halves = ctx.halves
        grad = grad.contiguous()
        here_weight, halo_weight = _take(weight, halves)
        grad_x = pending = None
        if ctx.needs_input_grad[0]:
            if halves.halo is not None:
                pending = ctx.exchange.reverse.start(_adjoint(halves.halo.csr, grad, halo_weight))
            grad_x = _adjoint(halves.here.csr, grad, here_weight)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(halves, grad, weight, (x, rows))
        if pending is not None and grad_x is not None:
            grad_x = ctx.exchange.plan.add_boundary(grad_x, pending.wait())
        return grad_x, grad_weight, None, None


def _adjoint(csr: CSR, grad: Tensor, weight: Tensor | None) -> Tensor:
    transposed = csr.transpose
    return spmm_sum(transposed.csr, grad, None if weight is None else transposed.take(weight))


def _weight_gradient(
    halves: _Halves, grad: Tensor, weight: Tensor, sources: tuple[Tensor, Tensor | None]
) -> Tensor:
    x, rows = sources
    heads = weight.dim() == 2
    here = sddmm(halves.here.csr, grad, x, heads)
    if halves.here.position is None or halves.halo is None or rows is None:
        return here
    out = torch.empty_like(weight)
    out[halves.here.position] = here
    out[halves.halo.position] = sddmm(halves.halo.csr, grad, rows, heads)
    return out


class _Extreme(torch.autograd.Function):
    """Maximum or minimum over all sources; equal sources share the gradient equally. Collective."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, csr: CSR, exchange: Any, reduce: str) -> Tensor:
        halves = _halves(csr, exchange)
        pending: Pending | None = exchange.forward.start(x) if exchange is not None else None
        out = spmm_extreme(halves.here.csr, x, reduce)
        rows = None
        if pending is not None and halves.halo is not None:
            rows = pending.wait()
            pick = torch.maximum if reduce == "max" else torch.minimum
            out = pick(out, spmm_extreme(halves.halo.csr, rows, reduce))
        empty = csr.counts == 0
        out = out.masked_fill(empty.view(-1, *(1,) * (out.dim() - 1)), 0.0)
        ctx.exchange, ctx.halves = exchange, halves
        ctx.save_for_backward(x, rows, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, out = ctx.saved_tensors
        halves: _Halves = ctx.halves
        count = tie_counts(halves.here.csr, x, out)
        if halves.halo is not None:
            count += tie_counts(halves.halo.csr, rows, out)
        share = grad / count.clamp_(min=1)
        pending = None
        if halves.halo is not None:
            pending = ctx.exchange.reverse.start(tie_gradient(halves.halo.csr, rows, out, share))
        grad_x = tie_gradient(halves.here.csr, x, out, share)
        if pending is not None:
            grad_x = ctx.exchange.plan.add_boundary(grad_x, pending.wait())
        return grad_x, None, None, None
