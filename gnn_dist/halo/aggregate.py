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
come in pieces, A_halo is cut into as many; what a backward needs of them is then fetched again. On
a vertex-cut, where partial sums travel in place of rows, `clones.py` does the same.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError, GraphError
from gnn_dist.halo.block import Block
from gnn_dist.halo.clones import CloneOperator, reduce_over_clones
from gnn_dist.halo.exchange import Pending, halo_exchange
from gnn_dist.halo.operator import Columns, Operator
from gnn_dist.halo.pieces import each_piece, fetch_and_return, give_back
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.sddmm import weight_gradient
from gnn_dist.ops.spmm import Factors, spmm_extreme, spmm_share, spmm_sum, spmm_where_equal

__all__ = ["REDUCES", "aggregate", "all_sources"]

REDUCES = ("sum", "mean", "max", "min")
EXTREMES = ("max", "min")


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

    Of a block whose in-edges were drawn, a sum is what `Structure.represents` makes of it: right on
    average. With `self_loops` that is in the weight (see `Structure.loop_edge_weight`).

    Args:
        x: (n, ...) rows of owned sources, or (num_src, ...) where the block has no exchange.
        block: The layer's graph. Where `x` is its constant, work and exchange are done once. Of a
            block `with_ahead`, what has left must be `x`.
        reduce: `sum`, `mean`, `max` or `min`. A destination without in-edges gets zeros.
        weight: (nnz,), or (nnz, H) with x (n, H, ...); for `sum` and `mean` only. Differentiable.
        scale: (num_src,), for `sum` only: an edge from j to i counts scale[i] * scale[j] times.
        self_loops: Use `structure.with_self_loops`; `weight` is then in its order.
        onto: (num_dst, ...), like `x`, for `sum` and `mean` only: the result is added to it, in
            place where it is contiguous rows and no view. Differentiable; not to be used again.

    Returns:
        (num_dst, ...), like `x`.

    Raises:
        ConfigError: An unknown reduction, or a weighted one that is not defined.
            On every rank: the exchange's policy is for sums alone and `reduce` is none; on a
            vertex-cut, also any policy that is not exact.
        GraphError: `x`, `weight`, `scale` or `onto` does not fit, or constant rows were changed.
    """
    structure = block.structure
    csr = structure.with_self_loops.csr if self_loops else structure.csr
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
    dst = scale
    if reduce == "sum" and structure.represents is not None and not self_loops:
        dst = structure.represents if dst is None else dst[: block.num_dst] * structure.represents
    elif reduce == "mean":
        dst = structure.loop_mean_scale if self_loops else structure.mean_scale
    base = None if onto is None else _apart(_flat(onto), x)
    if exchange is not None and exchange.clones is not None:
        rows = structure.looped_clone_rows if self_loops else structure.clone_rows
        over = CloneOperator(csr, rows, exchange.plan, exchange.clones, scale, dst)
        out = reduce_over_clones(_flat(x), over, reduce=reduce, weight=weight, onto=base)
    else:
        symmetric = symmetric and (reduce in EXTREMES or structure.is_own_factors(weight))
        operator = Operator(csr, exchange, symmetric, scale, dst, block.ahead)
        out = _over_sources(_flat(x), operator, reduce=reduce, weight=weight, onto=base)
    return out if x.dim() == 2 else out.view(block.num_dst, *x.shape[1:])


def _over_sources(
    x: Tensor, operator: Operator, *, reduce: str, weight: Tensor | None, onto: Tensor | None
) -> Tensor:
    """Collective. Reduce rows (n, F) over in-edges that are all here."""
    exchange = operator.exchange
    if reduce in EXTREMES:
        if exchange is not None:
            exchange.check_any_use(f"reduce={reduce!r}")
        return _Extreme.apply(x, operator, reduce)  # type: ignore[no-any-return, no-untyped-call]
    if exchange is not None and exchange.mirrored is None:
        operator = operator._replace(symmetric=False)
    return _Sum.apply(x, weight, onto, operator)  # type: ignore[no-any-return, no-untyped-call]


def _flat(rows: Tensor) -> Tensor:
    """Return rows (n, ...) as (n, F)."""
    return rows if rows.dim() == 2 else rows.reshape(rows.size(0), rows.shape[1:].numel())


def _apart(onto: Tensor, x: Tensor) -> Tensor:
    """Return what is added to, with contiguous rows, in other memory than the sources.

    Sums are added row by row while sources are read. A view is copied too: autograd mistakes the
    gradients of a function that changes a view which is not its first argument.
    """
    same = onto.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    if same or onto._is_view():
        return onto.clone(memory_format=torch.contiguous_format)
    return onto.contiguous()


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
    if reduce in EXTREMES and any(value is not None for value in given):
        raise ConfigError(f"weights are for sum and mean, onto too, got reduce={reduce!r}")
    if reduce in EXTREMES and block.ahead is not None:
        raise ConfigError(f"rows leave ahead of a sum or mean only, got reduce={reduce!r}")
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
        pending: Pending | None = None
        if operator.ahead is not None:
            pending = operator.ahead.pending()
        elif exchange is not None:
            pending = exchange.forward.start(x)
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
        in_pieces = operator.exchange is not None and operator.exchange.in_pieces
        if in_pieces and finish is not None and grad_x is not None:
            grad_x, finish = finish(grad_x), None  # before the buffer is used for source rows
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = _weight_gradient(operator, grad, weight, (x, rows))
        if finish is not None and grad_x is not None:
            if operator.ahead is None:
                grad_x = finish(grad_x)
            else:
                operator.ahead.leave(finish)
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


# What is known of a gradient before others' rows are here, and what adds these.
Adjoint = tuple[Tensor, Callable[[Tensor], Tensor] | None]


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
    return transposed(halves.here, halves.src), add


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

    def finish(grad_x: Tensor) -> Tensor:
        def use(begin: int, end: int, values: Tensor) -> None:
            for columns, part in halves.within(begin, end, values):
                dst = None if dst_halo is None else dst_halo[columns.begin : columns.end]
                factors = Factors(weight, columns.half.position, dst, halves.src)
                spmm_sum(columns.half.csr, part, factors, out=grad_x)

        each_piece(pending, use)
        return grad_x

    return grad_x, finish


def _weight_gradient(
    operator: Operator, grad: Tensor, weight: Tensor, sources: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Return the weights' gradient. Collective where halo rows came in pieces."""
    x, rows = sources
    halves, exchange = operator.halves(x, weight), operator.exchange
    if operator.own_dst is not None:
        grad = grad * operator.own_dst.to(grad.dtype)[:, None]
    mine = weight_gradient(halves.here.csr, grad, x, like=weight, src=halves.src)
    out = mine if halves.here.position is None else torch.empty_like(weight)
    if halves.here.position is not None:
        out[halves.here.position] = mine

    def use(begin: int, end: int, values: Tensor) -> None:
        for columns, part in halves.within(begin, end, values):
            csr, src = columns.half.csr, columns.src
            out[columns.half.position] = weight_gradient(csr, grad, part, like=weight, src=src)

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
