"""Attention over a sparse structure: weights by softmax over each row's entries, then their sum.

    out[r, h] = sum over r's entries of softmax(score[., h])[entry] * mask[entry, h] * value[c, h]

Nothing of the shape (nnz, heads, F) is ever made, forward or backward. Forward, a row's sum and the
softmax under it are built in one walk over its entries; backward, coefficients are computed again
from what little is kept of each row, in two walks: along rows, for gradients of destinations, and
along columns, for those of sources.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels

__all__ = [
    "AttentionDropout",
    "Walk",
    "dot_aggregate",
    "gat_aggregate",
    "gatv2_aggregate",
    "numbers_for",
    "rows_of",
]


@dataclass(frozen=True, eq=False)
class AttentionDropout:
    """Dropout of attention coefficients, drawn by edge and head, the same for any partition.

    Attributes:
        p: Probability of dropping a coefficient; kept ones are scaled by 1 / (1 - p).
        key: Seed, step and site.
        src_id: int64 (K,), original ids of columns.
        dst_id: int64 (R,), original ids of rows.
    """

    p: float
    key: DrawKey
    src_id: Tensor
    dst_id: Tensor

    def __post_init__(self) -> None:
        """Check the probability."""
        if not 0.0 <= self.p <= 1.0:
            raise ConfigError(f"the probability to drop must lie in [0, 1], got {self.p}")

    @property
    def arguments(self) -> tuple[int, int, float, Tensor, Tensor]:
        """The last arguments of the operators."""
        scale = 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0
        ids = self.src_id.contiguous(), self.dst_id.contiguous()
        return (self.key.value, round(self.p * 2**32), scale, *ids)


def gat_aggregate(
    csr: CSR,
    x: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    *,
    negative_slope: float = 0.2,
    dropout: AttentionDropout | None = None,
    symmetric: bool = False,
) -> Tensor:
    """Attend with score leaky_relu(<att_src, x[c]> + <att_dst, x[r]>) and value x[c].

    Differentiable.

    Source: "Graph Attention Networks" (Velickovic et al.), arXiv 1710.10903, equations 3 to 6; the
    running softmax: "Online normalizer calculation for softmax" (Milakov, Gimelshein),
    arXiv 1805.02867, algorithm 3. O(nnz H F) time and O(K H) memory beside inputs and outputs.

    Args:
        csr: (R, K) structure, of which the first R columns are the rows.
        x: (K, H F).
        att_src: (H, F).
        att_dst: (H, F).
        negative_slope: Of the leaky ReLU.
        dropout: Of coefficients.
        symmetric: Every entry has its reverse, as often: no transposed structure is made.

    Returns:
        (R, H F), like `x`; zero for rows without entries.

    Raises:
        ValueError: Shapes or dtypes do not fit.
        IndexError: The structure points outside.
    """
    vectors = (numbers_for(att, x) for att in (att_src, att_dst))
    walk = Walk(csr, symmetric, negative_slope, dropout)
    return _Attend.apply(_Form("gat", keeps_out=False), walk, rows_of(x), *vectors)  # type: ignore[no-any-return, no-untyped-call]


def gatv2_aggregate(
    csr: CSR,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *,
    negative_slope: float = 0.2,
    dropout: AttentionDropout | None = None,
    symmetric: bool = False,
) -> Tensor:
    """Attend with score <att, leaky_relu(x_src[c] + x_dst[r])> and value x_src[c].

    Differentiable.

    Source: "How Attentive are Graph Attention Networks?" (Brody, Alon, Yahav), arXiv 2105.14491,
    equation 7.

    Args:
        csr: (R, K) structure.
        x_src: (K, H F).
        x_dst: (R, H F), like `x_src`.
        att: (H, F).
        negative_slope: Of the leaky ReLU.
        dropout: Of coefficients.
        symmetric: Every entry has its reverse, as often: no transposed structure is made.

    Returns:
        (R, H F), like `x_src`; zero for rows without entries.

    Raises:
        ValueError: Shapes or dtypes do not fit.
        IndexError: The structure points outside.
    """
    walk = Walk(csr, symmetric, negative_slope, dropout)
    tensors = (rows_of(x_src), rows_of(x_dst), numbers_for(att, x_src))
    return _Attend.apply(_Form("gatv2"), walk, *tensors)  # type: ignore[no-any-return, no-untyped-call]


def dot_aggregate(  # noqa: PLR0913 - three matrices
    csr: CSR,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    heads: int,
    scale: float,
    dropout: AttentionDropout | None = None,
    symmetric: bool = False,
) -> Tensor:
    """Attend with score scale * <query[r], key[c]> and value value[c].

    Differentiable.

    Source: "Attention Is All You Need" (Vaswani et al.), arXiv 1706.03762, equation 1, with a row's
    entries as its keys.

    Args:
        csr: (R, K) structure.
        query: (R, H F).
        key: (K, H F).
        value: (K, H F).
        heads: H.
        scale: Usually F ** -0.5.
        dropout: Of coefficients.
        symmetric: Every entry has its reverse, as often: no transposed structure is made.

    Returns:
        (R, H F), like `value`; zero for rows without entries.

    Raises:
        ValueError: Shapes or dtypes do not fit.
        IndexError: The structure points outside.
    """
    walk = Walk(csr, symmetric, scale, dropout)
    form = _Form("dot_attention", (heads,))
    return _Attend.apply(form, walk, rows_of(query), rows_of(key), rows_of(value))  # type: ignore[no-any-return, no-untyped-call]


@dataclass(frozen=True, eq=False)
class Walk:
    """What the forward and the backward share beside rows.

    Attributes:
        csr: The structure.
        symmetric: It is its own transpose.
        number: The negative slope, or the scale.
        dropout: Of coefficients.
    """

    csr: CSR
    symmetric: bool
    number: float
    dropout: AttentionDropout | None

    @property
    def forward(self) -> tuple[Tensor, Tensor]:
        """The structure's arrays."""
        return self.csr.indptr, self.csr.indices

    @property
    def both_ways(self) -> tuple[Tensor, ...]:
        """Those of the structure and of its transpose."""
        other = self.csr if self.symmetric else self.csr.transpose.csr
        return *self.forward, other.indptr, other.indices

    @property
    def last(self) -> tuple[Any, ...]:
        """The operators' last arguments."""
        return (self.number, *(() if self.dropout is None else self.dropout.arguments))


class _Form(NamedTuple):
    """One kind of attention: its operators, and what their backward reads.

    Attributes:
        name: Of the forward operator; the backward's ends in `_grad`.
        numbers: Further arguments between tensors and the walk's.
        keeps_out: The backward reads the output.
    """

    name: str
    numbers: tuple[int, ...] = ()
    keeps_out: bool = True


class _Attend(torch.autograd.Function):
    """Any form of attention over rows and vectors, whose gradients come in the same order."""

    @staticmethod
    def forward(ctx: Any, form: _Form, walk: Walk, *tensors: Tensor) -> Tensor:
        operator = getattr(kernels, form.name)
        out: Tensor
        out, *kept = operator(*walk.forward, *tensors, *form.numbers, *walk.last)
        ctx.save_for_backward(*tensors, *kept, *([out] if form.keeps_out else []))
        ctx.form, ctx.walk = form, walk
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        form, walk = ctx.form, ctx.walk
        operator = getattr(kernels, f"{form.name}_grad")
        rows = (*ctx.saved_tensors, rows_of(grad))
        return None, None, *operator(*walk.both_ways, *rows, *form.numbers, *walk.last)


def rows_of(matrix: Tensor) -> Tensor:
    """Return a matrix whose rows are contiguous."""
    return matrix.contiguous() if matrix.size(1) > 1 and matrix.stride(1) != 1 else matrix


def numbers_for(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return vectors in the dtype that such rows are added up in."""
    return vectors.to(torch.promote_types(rows.dtype, torch.float32)).contiguous()
