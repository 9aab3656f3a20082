"""Aggregation on a vertex-cut: every clone sums the edges that it has, and sums meet at the root.

    forward     z = A_halo x        up    z         -->  .......... the clones' sums
                t = A_boundary x                         t += the clones' sums
                                    down  t - each  -->  .......... the rest, for each clone
                out = A_interior x; out[boundary] += t;  out[halo] += z + rest
    backward                        up    g_halo    -->  .......... the clones' gradients
                grad_x = A_interior' g;                  t = g_boundary + the clones' gradients
                                    down  t - each  -->  .......... the rest, for each clone
                grad_x += A_boundary' t;                 grad_x += A_halo' (g_halo + rest)

`A` are this rank's edges, times factors. Its rows are all local nodes: halo (other clones),
boundary (roots that have some) and interior (roots that are alone). "Add up over clones, and give
each the total" is its own adjoint: the backward does to gradients what the forward does to sums,
before it applies the transpose of `A`. Each clone's row is a variable of its own, with its own
gradient.

The root sends each clone what the others have, not the total: what a clone has itself is then never
older than its step, whatever a policy keeps of what travels.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError
from gnn_dist.halo.exchange import CloneExchange, Pending, RoundTrip
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.rows import gather_rows, scatter_add_rows
from gnn_dist.ops.sddmm import weight_gradient
from gnn_dist.ops.spmm import (
    Factors,
    spmm_extreme,
    spmm_share,
    spmm_sum,
    spmm_where_equal,
)
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.structure import CloneRows

__all__ = ["CloneOperator", "reduce_over_clones"]


class CloneOperator(NamedTuple):
    """The linear map of an aggregation, without its differentiable weight.

    Attributes:
        csr: Local nodes and local nodes.
        rows: The same, cut by rows.
        plan: Which clones are whose.
        exchange: What carries sums and gradients.
        src: (n + h,) factors of sources, or None.
        dst: (n + h,) factors of destinations, or None.
    """

    csr: CSR
    rows: CloneRows
    plan: HaloPlan
    exchange: CloneExchange
    src: Tensor | None
    dst: Tensor | None

    @property
    def dst_by_rows(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """`dst` of halo, boundary and interior rows (all of them, as the structure has)."""
        if self.dst is None:
            return None, None, None
        return self.dst[self.plan.num_owned :], self.dst[self.plan.boundary], self.dst


def reduce_over_clones(
    x: Tensor,
    operator: CloneOperator,
    *,
    reduce: str,
    weight: Tensor | None = None,
    onto: Tensor | None = None,
) -> Tensor:
    """Collective. Reduce over all in-edges of each local node, wherever they are; differentiable.

    Args:
        x: (n + h, F), alike on all clones of a node.
        operator: Edges, factors and exchange.
        reduce: `sum` or `mean`, whose factors the operator has; `max` or `min`, without factors.
        weight: (nnz,) or (nnz, H), of a sum.
        onto: (n + h, F), what a sum is added to, in place, or None.

    Returns:
        (n + h, F), alike on all clones of a node if `onto` is.

    Raises:
        ConfigError: On every rank: a maximum or minimum under a policy that is not exact, so that
            nothing would be equal to it.
    """
    if reduce in ("sum", "mean"):
        return _CloneSum.apply(x, weight, onto, operator)  # type: ignore[no-any-return, no-untyped-call]
    if not operator.exchange.exact:
        raise ConfigError(
            f"reduce={reduce!r} on a vertex-cut compares rows with what has travelled, which must "
            "be exact: use --halo overlap"
        )
    return _CloneExtreme.apply(x, operator, reduce)  # type: ignore[no-any-return, no-untyped-call]


class _Totals(NamedTuple):
    """What is left to do when the roots have their totals: `rest` is on its way to the clones."""

    roots: Tensor
    rest: Pending


def _meet(plan: HaloPlan, trip: RoundTrip, roots: Tensor, arriving: Pending) -> _Totals:
    """Collective. Add what arrives from clones to the roots' rows (b, F), in place, and answer."""
    contributions = arriving.wait()
    slot = plan.boundary_slot
    scatter_add_rows(roots, slot, contributions)
    return _Totals(roots, trip.down.start(gather_rows(roots, slot).sub_(contributions)))


class _CloneSum(torch.autograd.Function):
    """onto + weighted sum over all clones' edges. Collective, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, onto: Tensor | None, operator: CloneOperator
    ) -> Tensor:
        halo, boundary, interior = operator.rows
        dst_halo, dst_boundary, dst_interior = operator.dst_by_rows

        def summed(rows: SubCSR, dst: Tensor | None, out: Tensor | None = None) -> Tensor:
            return spmm_sum(rows.csr, x, Factors(weight, rows.position, operator.src, dst), out=out)

        plan, trip = operator.plan, operator.exchange.values
        own = summed(halo, dst_halo)
        arriving = trip.up.start(own)
        totals = _meet(plan, trip, summed(boundary, dst_boundary), arriving)
        if onto is not None:
            ctx.mark_dirty(onto)
        out = summed(interior, dst_interior, onto)
        scatter_add_rows(out, plan.boundary, totals.roots)
        out[plan.num_owned :].add_(own).add_(totals.rest.wait())
        ctx.operator = operator
        # Source rows are needed again only where the weights have a gradient.
        keep = weight is not None and weight.requires_grad
        ctx.save_for_backward(weight, x if keep else None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        operator: CloneOperator = ctx.operator
        needs_x, needs_weight, needs_onto, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if needs_x or needs_weight:
            grad_x, by_rows = _transposed(operator, grad, weight, needs_x)
            if needs_weight:
                grad_weight = _weight_gradient(operator, by_rows, x, weight)
        return grad_x, grad_weight, grad if needs_onto else None, None


ByRows = tuple[Tensor, Tensor, Tensor]


def _transposed(
    operator: CloneOperator, grad: Tensor, weight: Tensor | None, needs_x: bool
) -> tuple[Tensor | None, ByRows]:
    """Collective. Return the gradient of x, and those of the sums of halo, boundary, all rows."""
    plan, trip = operator.plan, operator.exchange.gradients
    dst_halo, dst_boundary, dst_interior = operator.dst_by_rows
    own = grad[plan.num_owned :]
    arriving = trip.up.start(own)

    def turned(
        rows: SubCSR, values: Tensor, dst: Tensor | None, out: Tensor | None
    ) -> Tensor | None:
        if not needs_x:
            return None
        csr, position = rows.csr.transpose
        if weight is not None and position is not None and rows.position is not None:
            position = rows.position.index_select(0, position)
        return spmm_sum(csr, values, Factors(weight, position, dst, operator.src), out=out)

    grad_x = turned(operator.rows.interior, grad, dst_interior, None)
    roots, rest = _meet(plan, trip, gather_rows(grad, plan.boundary), arriving)
    turned(operator.rows.boundary, roots, dst_boundary, grad_x)
    halo = own + rest.wait()
    turned(operator.rows.halo, halo, dst_halo, grad_x)
    return grad_x, (halo, roots, grad)


def _weight_gradient(operator: CloneOperator, by_rows: ByRows, x: Tensor, weight: Tensor) -> Tensor:
    out = torch.empty_like(weight)
    for rows, values, dst in zip(operator.rows, by_rows, operator.dst_by_rows, strict=True):
        scaled = values if dst is None else values * dst.to(values.dtype)[:, None]
        gradient = weight_gradient(rows.csr, scaled, x, like=weight, src=operator.src)
        out[rows.position] = gradient
    return out


class _CloneExtreme(torch.autograd.Function):
    """Maximum or minimum over all clones' edges. Collective, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: CloneOperator, reduce: str) -> Tensor:
        out, count = spmm_extreme(operator.csr, x, reduce)
        # Clones without an edge must not win, nor share.
        out.masked_fill_(count == 0, float("-inf" if reduce == "max" else "inf"))
        _agree(operator, reduce, out, count)
        out.masked_fill_(count == 0, 0.0)
        ctx.operator = operator
        ctx.save_for_backward(x, out, count)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, out, count = ctx.saved_tensors
        operator: CloneOperator = ctx.operator
        plan, trip = operator.plan, operator.exchange.gradients
        total = grad.clone(memory_format=torch.contiguous_format)
        arriving = trip.up.start(grad[plan.num_owned :])
        roots, rest = _meet(plan, trip, gather_rows(grad, plan.boundary), arriving)
        total[plan.boundary] = roots
        total[plan.num_owned :] += rest.wait()
        share = spmm_share(total, count)
        return spmm_where_equal(operator.csr.transpose.csr, out, share, x), None, None


def _agree(operator: CloneOperator, reduce: str, out: Tensor, count: Tensor) -> None:
    """Collective. Make values and counts (n + h, F) those of all clones together, in place.

    Values and the numbers of entries that reach them travel side by side, in 32 bits at least.
    """
    plan, trip = operator.plan, operator.exchange.values
    wide, width = torch.promote_types(out.dtype, torch.float32), out.size(1)

    def side_by_side(values: Tensor, counts: Tensor) -> Tensor:
        return torch.cat([values.to(wide), counts.to(wide)], 1)

    arriving = trip.up.start(side_by_side(out[plan.num_owned :], count[plan.num_owned :]))
    slot = plan.boundary_slot
    own, own_count = out[plan.boundary].to(wide), count[plan.boundary].to(wide)
    value, reached = torch.split(arriving.wait(), width, 1)
    index = slot[:, None].expand(-1, width)
    best = own.scatter_reduce(0, index, value, "amax" if reduce == "max" else "amin")
    total = own_count.masked_fill(own != best, 0.0)
    scatter_add_rows(total, slot, reached.masked_fill(value != best[slot], 0.0))
    answer = trip.down.start(side_by_side(best[slot], total[slot])).wait()
    out[plan.boundary], count[plan.boundary] = best.to(out.dtype), total.to(count.dtype)
    value, reached = torch.split(answer, width, 1)
    out[plan.num_owned :], count[plan.num_owned :] = value.to(out.dtype), reached.to(count.dtype)
