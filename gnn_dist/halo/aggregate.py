"""The one differentiable aggregation, over owned sources and halo sources.

    forward     exchange x          -->  .............. halo rows
                out  = A_owned x         out += A_halo halo
    backward    grad_halo = A_halo' g;  exchange  -->  .............. boundary rows
                grad_x = A_owned' g;    weight gradients;   grad_x += boundary rows
    or, where A = A' over all ranks,
                exchange g          -->  .............. halo rows of g
                grad_x = A_owned g       grad_x += A_halo halo

Without symmetry, halo gradients come first in the backward, so that they travel while the rest is
computed. With it there is nothing to wait for before sending, and no transposed copy of the graph
is kept. `A = [A_owned | A_halo]` are the columns of the shard's structure (or of the same with
self-loops) times factors of the entries, sources and destinations. Where a policy has halo rows
come in pieces, A_halo is cut into as many; what a backward needs of them is then fetched again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import Pending, halo_exchange
from gnn_dist.halo.operator import Columns, Operator
from gnn_dist.halo.pieces import each_piece, fetch_and_return, give_back
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.sddmm import sddmm
from gnn_dist.ops.spmm import Factors, spmm_extreme, spmm_share, spmm_sum, spmm_where_equal

__all__ = ["REDUCES", "aggregate", "all_sources"]

REDUCES = ("sum", "mean", "max", "min")


def aggregate(
    x: Tensor,
    block: Block,
    *,
    reduce: str = "sum",
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    self_loops: bool = False,
    onto: Tensor | None = None,
) -> Tensor:
    """Collective. Reduce, for each destination, weight * x over its in-edges.

    Args:
        x: (n, ...) rows of owned sources, or (num_src, ...) where the block has no exchange.
        block: The layer's graph. Where `x` is its constant, work and exchange are done once.
        reduce: `sum`, `mean`, `max` or `min`. A destination without in-edges gets zeros.
        weight: (nnz,), or (nnz, H) with x (n, H, ...); for `sum` and `mean` only. Differentiable.
        scale: (num_src,), for `sum` only: an edge from j to i counts scale[i] * scale[j] times.
        self_loops: Use `structure.csr.with_self_loops`; `weight` is then in its order.
        onto: (num_dst, ...), like `x`, for `sum` and `mean` only: the result is added to it, in
            place where it is contiguous. Differentiable; not to be used again.

    Returns:
        (num_dst, ...), like `x`.

    Raises:
        ConfigError: An unknown reduction, or a weighted one that is not defined.
            On every rank: the exchange's policy is for sums alone and `reduce` is none.
        GraphError: `x`, `weight`, `scale` or `onto` does not fit, or constant rows were changed.
    """
    structure = block.structure
    csr = structure.csr.with_self_loops if self_loops else structure.csr
    _check(x, block, csr, reduce, (weight, scale, onto))
    if block.is_constant(x) and onto is None and structure.is_own_factors(weight, scale):
        return block.once(
            (reduce, self_loops, weight is None, scale is None),
            lambda plain: aggregate(
                x, plain, reduce=reduce, weight=weight, scale=scale, self_loops=self_loops
            ),
        )
    # On a block without an exchange, gradients are of all sources, which are not all destinations.
    symmetric = structure.symmetric and block.num_rows_in == block.num_dst
    exchange = block.exchange
    if exchange is not None and exchange.is_alone:
        exchange = None
    out: Tensor
    if reduce in ("max", "min"):
        if exchange is not None:
            exchange.check_any_use(f"reduce={reduce!r}")
        operator = Operator(csr, exchange, symmetric, None, None)
        out = _Extreme.apply(_flat(x), operator, reduce)  # type: ignore[no-untyped-call]
    else:
        dst = scale
        if reduce == "mean":
            dst = csr.mean_scale if self_loops else structure.mean_scale
        symmetric = symmetric and structure.is_own_factors(weight)
        symmetric = symmetric and (exchange is None or exchange.mirrored is not None)
        operator = Operator(csr, exchange, symmetric, scale, dst)
        base = None if onto is None else _flat(_apart(onto, x))
        out = _Sum.apply(_flat(x), weight, base, operator)  # type: ignore[no-untyped-call]
    return out if x.dim() == 2 else out.view(block.num_dst, *x.shape[1:])


def _flat(rows: Tensor) -> Tensor:
    """Return rows (n, ...) as (n, F)."""
    return rows if rows.dim() == 2 else rows.reshape(rows.size(0), rows.shape[1:].numel())


def _apart(onto: Tensor, x: Tensor) -> Tensor:
    """Return what is added to, with contiguous rows, in other memory than the sources.

    Sums are added row by row while sources are read.
    """
    same = onto.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    return onto.clone() if same else onto.contiguous()


def all_sources(x: Tensor, block: Block) -> Tensor:
    """Collective. Return the rows (num_src, ...) of all sources, differentiably.

    For messages that are not a weighted sum of source rows. `aggregate` is faster where it serves.
    """
    if block.exchange is None:
        return x
    return torch.cat([x, halo_exchange(x, block.exchange)])


def _check(
    x: Tensor, block: Block, csr: CSR, reduce: str, given: tuple[Tensor | None, ...]
) -> None:
    weight, scale, onto = given
    if reduce not in REDUCES:
        raise ConfigError(f"reduce must be one of {', '.join(REDUCES)}, got {reduce!r}")
    if x.size(0) != block.num_rows_in:
        raise GraphError(f"x must have {block.num_rows_in} rows for this block, got {x.size(0)}")
    if reduce in ("max", "min") and any(value is not None for value in given):
        raise ConfigError(f"weights are for sum and mean, onto too, got reduce={reduce!r}")
    if scale is not None and reduce != "sum":
        raise ConfigError(f"scale is for sum, got reduce={reduce!r}")
    if weight is not None:
        _check_weight(weight, x, csr.nnz)
    if scale is not None and scale.shape != (block.structure.num_src,):
        raise GraphError(
            f"scale must have one element per source ({block.structure.num_src}), got "
            f"{tuple(scale.shape)}"
        )
    if onto is not None and onto.shape != (block.num_dst, *x.shape[1:]):
        raise GraphError(
            f"onto must be of shape {(block.num_dst, *x.shape[1:])}, got {tuple(onto.shape)}"
        )


def _check_weight(weight: Tensor, x: Tensor, nnz: int) -> None:
    if weight.size(0) != nnz:
        raise GraphError(f"weight must have one row per edge ({nnz}), got {weight.size(0)}")
    if weight.dim() == 1:
        return
    if weight.dim() != 2 or x.dim() < 3 or weight.size(1) != x.size(1):
        raise GraphError(
            "weight must be (edges,), or (edges, heads) with x (rows, heads, ...), got "
            f"{tuple(weight.shape)} with x {tuple(x.shape)}"
        )


class _Sum(torch.autograd.Function):
    """onto + weighted sum over all sources. Collective, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, onto: Tensor | None, operator: Operator
    ) -> Tensor:
        halves, exchange = operator.halves(x, weight), operator.exchange
        pending = None if exchange is None else exchange.forward.start(x)
        if onto is not None:
            ctx.mark_dirty(onto)
        factors = Factors(weight, halves.here.position, halves.src, operator.own_dst)
        out = spmm_sum(halves.here.csr, x, factors, out=onto)
        # Source rows are needed again only where the weights have a gradient.
        keep = weight is not None and weight.requires_grad
        rows = _Rows(keep and exchange is not None and not exchange.in_pieces)

        def use(begin: int, end: int, values: Tensor) -> None:
            rows.see(values)
            for columns, part in halves.within(begin, end, values):
                factors = Factors(weight, columns.half.position, columns.src, operator.own_dst)
                spmm_sum(columns.half.csr, part, factors, out=out)

        if pending is not None:
            each_piece(pending, use)
        ctx.operator = operator
        ctx.save_for_backward(weight, x if keep else None, rows.kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x, rows = ctx.saved_tensors
        operator: Operator = ctx.operator
        grad_x: Tensor | None = None
        finish = None
        if ctx.needs_input_grad[0]:
            adjoint = _mirrored if operator.symmetric else _reversed
            grad_x, finish = adjoint(operator, grad, weight)
        if finish is not None and operator.exchange is not None and operator.exchange.in_pieces:
            grad_x, finish = finish(), None  # before the buffer is used for source rows
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(operator, grad, weight, (x, rows))
        if finish is not None:
            grad_x = finish()
        return grad_x, grad_weight, grad if ctx.needs_input_grad[2] else None, None


class _Rows:
    """Halo rows that came in one piece and are kept, where that is wanted."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.kept: Tensor | None = None

    def see(self, rows: Tensor) -> None:
        """Keep rows, or do not."""
        if self._wanted:
            self.kept = rows


Adjoint = tuple[Tensor, Callable[[], Tensor] | None]


def _reversed(operator: Operator, grad: Tensor, weight: Tensor | None) -> Adjoint:
    """Collective. Apply the transpose: halo gradients travel back to their owners."""
    halves = operator.halves(grad, weight)

    def transposed(half: SubCSR, src: Tensor | None) -> Tensor:
        turned = half.csr.transpose
        position = turned.position
        if half.position is not None and weight is not None and position is not None:
            position = half.position.index_select(0, position)
        return spmm_sum(turned.csr, grad, Factors(weight, position, operator.own_dst, src))

    def of_halo(begin: int, end: int) -> Tensor:
        return halves.made(begin, end, grad, lambda c: transposed(c.half, c.src))

    exchange = operator.exchange
    if exchange is None:
        return transposed(halves.here, halves.src), None
    add = give_back(exchange, of_halo, grad)
    grad_x = transposed(halves.here, halves.src)
    return grad_x, lambda: add(grad_x)


def _mirrored(operator: Operator, grad: Tensor, weight: Tensor | None) -> Adjoint:
    """Collective. Apply the same map to gradients: A = A', only the factors of ends change."""
    halves = operator.halves(grad, weight)
    mirrored = None if operator.exchange is None else operator.exchange.mirrored
    if mirrored is None:
        factors = Factors(weight, halves.here.position, operator.own_dst, halves.src)
        return spmm_sum(halves.here.csr, grad, factors), None
    dst_here, dst_halo = operator.own_dst, None
    if dst_here is not None and operator.dst is not None:
        if len(operator.dst) == operator.csr.num_cols:
            dst_halo = operator.dst[operator.csr.num_rows :]
        else:
            # Only their owners know the factors of halo destinations.
            wide = dst_here.to(torch.promote_types(grad.dtype, torch.float32))
            grad = (grad * wide[:, None]).to(grad.dtype)
            dst_here = None
    pending = mirrored.start(grad)
    factors = Factors(weight, halves.here.position, dst_here, halves.src)
    grad_x = spmm_sum(halves.here.csr, grad, factors)

    def use(begin: int, end: int, values: Tensor) -> None:
        for columns, part in halves.within(begin, end, values):
            dst = None if dst_halo is None else dst_halo[columns.begin : columns.end]
            factors = Factors(weight, columns.half.position, dst, halves.src)
            spmm_sum(columns.half.csr, part, factors, out=grad_x)

    def finish() -> Tensor:
        each_piece(pending, use)
        return grad_x

    return grad_x, finish


def _weight_gradient(
    operator: Operator, grad: Tensor, weight: Tensor, sources: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Return the weights' gradient. Collective where halo rows came in pieces."""
    x, rows = sources
    halves, exchange = operator.halves(x, weight), operator.exchange
    heads = weight.size(1) if weight.dim() == 2 else 1
    if operator.own_dst is not None:
        grad = grad * operator.own_dst.to(grad.dtype)[:, None]

    def by_head(values: Tensor) -> Tensor:
        return values.reshape(values.size(0), heads, values.size(1) // heads)

    def of(half: SubCSR, values: Tensor, src: Tensor | None) -> Tensor:
        product = sddmm(half.csr, by_head(grad), by_head(values), True).view(-1, *weight.shape[1:])
        if src is not None:
            factor = src.to(product.dtype).index_select(0, half.csr.indices)
            product = product * factor.view(-1, *(1,) * (product.dim() - 1))
        return product.to(weight.dtype)

    mine = of(halves.here, x, halves.src)
    out = mine if halves.here.position is None else torch.empty_like(weight)
    if halves.here.position is not None:
        out[halves.here.position] = mine

    def use(begin: int, end: int, values: Tensor) -> None:
        for columns, part in halves.within(begin, end, values):
            out[columns.half.position] = of(columns.half, part, columns.src)

    if rows is not None:
        use(0, rows.size(0), rows)
    elif exchange is not None and exchange.in_pieces:
        each_piece(exchange.forward.start(x), use)
    return out


class _Extreme(torch.autograd.Function):
    """Maximum or minimum over all sources; equal sources share the gradient equally. Collective."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: Operator, reduce: str) -> Tensor:
        halves, exchange = operator.halves(x, None), operator.exchange
        pending: Pending | None = None if exchange is None else exchange.forward.start(x)
        out, count = spmm_extreme(halves.here.csr, x, reduce)
        rows = _Rows(exchange is not None and not exchange.in_pieces)

        def use(begin: int, end: int, values: Tensor) -> None:
            rows.see(values)
            for columns, part in halves.within(begin, end, values):
                spmm_extreme(columns.half.csr, part, reduce, onto=(out, count))

        if pending is not None:
            each_piece(pending, use)
        ctx.operator = operator
        ctx.save_for_backward(x, rows.kept, out, count)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, out, count = ctx.saved_tensors
        operator: Operator = ctx.operator
        halves, exchange = operator.halves(x, None), operator.exchange
        share = spmm_share(grad, count)

        def of_halo(begin: int, end: int, values: Tensor) -> Tensor:
            def made(columns: Columns) -> Tensor:
                part = values[columns.begin - begin : columns.end - begin]
                return spmm_where_equal(columns.half.csr.transpose.csr, out, share, part)

            return halves.made(begin, end, values, made)

        add = None
        if exchange is not None and rows is not None:
            add = give_back(exchange, lambda begin, end: of_halo(begin, end, rows), x)
        here = halves.here.csr
        turned = here if operator.symmetric else here.transpose.csr
        grad_x = spmm_where_equal(turned, out, share, x)
        if add is not None:
            grad_x = add(grad_x)
        elif exchange is not None:
            grad_x = fetch_and_return(exchange, x, of_halo, grad_x)
        return grad_x, None, None
