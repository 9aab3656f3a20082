"""Graph attention over rows that are transformed, exchanged and attended to in one step.

    forward     rows = [x W' | halo rows]               out = attention(rows)
    backward    rows <- their gradient, in place        halo part --> its owners, added there
                grad_W = rows' x                        rows <- rows W, which is grad_x

Nothing else ever sees the transformed rows. So they are filled where they are needed, without being
put together from parts, and in the backward their memory becomes that of their own gradient (a
source's gradient needs of all rows its own alone) and then of the input's: beside input, output and
their gradients, which its caller has, a layer holds one matrix.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import GraphError
from gnn_dist.halo.block import Block
from gnn_dist.halo.exchange import LayerExchange
from gnn_dist.ops.attention import AttentionDropout, Walk, numbers_for, rows_of
from gnn_dist.ops.linear import computed, product, row_gradient_over, weight_gradient
from gnn_dist.ops.native import kernels
from gnn_dist.shard.structure import Structure

__all__ = ["gat_of_linear", "is_own_transpose"]


def is_own_transpose(structure: Structure) -> bool:
    """Return whether every edge here has its reverse here."""
    return structure.symmetric and structure.num_src == structure.num_dst


def gat_of_linear(
    x: Tensor,
    block: Block,
    *,
    weight: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    negative_slope: float = 0.2,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Collective. Attend, with self-loops, to all sources' rows of x @ weight.T.

    As `gat_aggregate` of `all_sources` of `linear`, in less memory; differentiable. A backward that
    comes again, with `retain_graph`, transforms and exchanges again what the first has used up.

    Args:
        x: (n, C) rows of owned sources, or (num_src, C) where the block has no exchange.
        block: The layer's graph.
        weight: (H F, C).
        att_src: (H, F).
        att_dst: (H, F).
        negative_slope: Of the leaky ReLU.
        dropout: Of coefficients.

    Returns:
        (n, H F), like `x`; under autocast, in autocast's dtype.

    Raises:
        GraphError: `x` has another number of rows.
        ConfigError: `x` does not hold floating-point numbers, or, on every rank, halo rows are for
            sums alone or never all here.
        ValueError: Other shapes or dtypes do not fit.
    """
    if x.size(0) != block.num_rows_in:
        raise GraphError(f"x must have {block.num_rows_in} rows for this block, got {x.size(0)}")
    structure, exchange = block.structure, block.exchange
    if exchange is not None and exchange.is_alone:
        exchange = None
    if exchange is not None:
        exchange.check_all_rows("attention")
    csr = structure.csr.with_self_loops
    walk = Walk(csr, is_own_transpose(structure), negative_slope, dropout)
    x = computed(x)
    vectors = (numbers_for(att, x) for att in (att_src, att_dst))
    return _GatOfLinear.apply(_Sources(walk, exchange), x, weight, *vectors)  # type: ignore[no-any-return, no-untyped-call]


class _Sources(NamedTuple):
    """How all sources' rows are made, and their gradients given back.

    Attributes:
        walk: The structure, and what the attention takes beside tensors.
        exchange: Brings the rows of sources beyond the destinations; None where they are here.
    """

    walk: Walk
    exchange: LayerExchange | None

    def rows(self, x: Tensor, weight: Tensor) -> Tensor:
        """Collective. Return the transformed rows (num_src, H F)."""
        if self.exchange is None:
            return product(x, weight)
        csr = self.walk.csr
        rows: Tensor = kernels.empty_rows(x, csr.num_cols, weight.size(0))
        own = product(x, weight, out=rows[: x.size(0)])
        rows[x.size(0) :] = self.exchange.forward.start(own).wait()
        return rows

    def to_owners(self, grad: Tensor) -> Tensor:
        """Collective. Return, of gradients (num_src, H F), those of own rows, made complete."""
        if self.exchange is None:
            return grad
        num_own = self.exchange.plan.num_owned
        boundary = self.exchange.reverse.start(grad[num_own:]).wait()
        return self.exchange.add_boundary(grad[:num_own], boundary)


class _GatOfLinear(torch.autograd.Function):
    """Collective, forward and backward."""

    @staticmethod
    def forward(ctx: Any, sources: _Sources, x: Tensor, weight: Tensor, *vectors: Tensor) -> Tensor:
        rows, walk = sources.rows(x, weight), sources.walk
        out: Tensor
        out, score, state = kernels.gat(*walk.forward, rows, *vectors, *walk.last)
        ctx.save_for_backward(x, weight, *vectors, rows, score, state)
        ctx.sources, ctx.rows_are_spent = sources, False
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        sources: _Sources = ctx.sources
        x, weight, *vectors, rows, score, state = ctx.saved_tensors
        # Their change is not for autograd to watch: a second backward does not read them.
        rows = sources.rows(x, weight) if ctx.rows_are_spent else rows.data
        ctx.rows_are_spent = True
        walk = sources.walk
        kept = (rows, *vectors, score, state, rows_of(grad))
        vector_grads = kernels.gat_grad_over(*walk.both_ways, *kept, *walk.last)
        _, needs_x, needs_weight, *_ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if needs_x or needs_weight:
            own = sources.to_owners(rows)
            grad_weight = weight_gradient(own, x, weight) if needs_weight else None
            grad_x = row_gradient_over(own, weight) if needs_x else None
        return None, grad_x, grad_weight, *vector_grads
