"""Aggregation over a sparse structure: out[row] = reduce over its entries of factor * x[column].

The functions here are pieces without autograd, because an aggregation over owned and halo sources
is put together from them (`gnn_dist.halo.aggregate`); `SparseRows.mm` is the differentiable product
with sparse features.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels
from gnn_dist.ops.rows import as_rows, new_rows_like, readable_rows

__all__ = [
    "Factors",
    "SparseRows",
    "spmm_extreme",
    "spmm_share",
    "spmm_sum",
    "spmm_where_equal",
]


class Factors(NamedTuple):
    """A_ij = dst[i] * weight[e] * src[j] for the entry e at row i and column j; None: ones.

    Attributes:
        weight: (nnz,), or (nnz, H) with x (K, H, ...).
        position: int32 or int64 (nnz,), where each entry's weight is; None: in order.
        src: (K,).
        dst: (R,).
    """

    weight: Tensor | None = None
    position: Tensor | None = None
    src: Tensor | None = None
    dst: Tensor | None = None

    def for_rows_of(self, dtype: torch.dtype) -> "Factors":
        """Return factors of the dtype that rows of this dtype are added up in, and contiguous."""
        wide = torch.promote_types(dtype, torch.float32)
        weight, position = self.weight, self.position
        if weight is not None:
            weight = weight.to(wide).contiguous()
            if position is not None and position.dtype != torch.int32:
                weight, position = weight.index_select(0, position), None
        src, dst = (None if f is None else f.to(wide).contiguous() for f in (self.src, self.dst))
        return Factors(weight, None if weight is None else position, src, dst)


NO_FACTORS = Factors()


def spmm_sum(
    csr: CSR, x: Tensor, factors: Factors = NO_FACTORS, *, out: Tensor | None = None
) -> Tensor:
    """Sum rows of `x`, times factors, along the entries of each row.

    Half precision is added up in float32.

    Args:
        csr: (R, K) structure.
        x: (K, ...), one row per column of `csr`.
        factors: Of the entries.
        out: (R, ...), like `x`, with contiguous rows; the sum is added into it.

    Returns:
        `out`, or a new tensor (R, ...) like `x`; zero for rows without entries.
    """
    if out is not None and csr.nnz == 0:
        return out  # nothing to add: do not read and write every row for it
    args = (csr.indptr, csr.indices, readable_rows(x), *factors.for_rows_of(x.dtype))
    if out is not None:
        kernels.spmm_add(as_rows(out), *args)
        return out
    result: Tensor = kernels.spmm(*args)
    # A view made inside a Function could not be changed in place afterwards.
    return result if x.dim() == 2 else result.view(csr.num_rows, *x.shape[1:])


def spmm_extreme(
    csr: CSR, x: Tensor, reduce: str, *, onto: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Take the largest (`max`) or smallest (`min`) element along the entries of each row.

    Args:
        csr: (R, K) structure.
        x: (K, ...).
        reduce: `max` or `min`.
        onto: Values and counts of other entries, to go on from; changed in place.

    Returns:
        Values (R, ...) like `x`, zero for rows without entries, and int32 (R, ...), how many
        entries reach each value.
    """
    if onto is None:
        counts = x.new_empty(0, *x.shape[1:], dtype=torch.int32)
        out, count = new_rows_like(x, csr.num_rows), new_rows_like(counts, csr.num_rows)
    else:
        out, count = onto
    kernels.spmm_extreme(
        as_rows(out),
        as_rows(count),
        csr.indptr,
        csr.indices,
        readable_rows(x),
        reduce == "max",
        onto is not None,
    )
    return out, count


def spmm_share(grad: Tensor, count: Tensor) -> Tensor:
    """Divide a gradient (R, ...) of what `spmm_extreme` returned by its counts."""
    out: Tensor = kernels.spmm_share(readable_rows(grad), readable_rows(count))
    return out.view(grad.shape)


def spmm_where_equal(csr: CSR, x: Tensor, second: Tensor, own: Tensor) -> Tensor:
    """Sum second[column] where x[column] equals own[row], along the entries of each row.

    Args:
        csr: (R, K) structure.
        x: (K, ...).
        second: (K, ...), like `x`.
        own: (R, ...), like rows of `x`.

    Returns:
        (R, ...), like `own`.
    """
    rows = (readable_rows(x.contiguous()), readable_rows(second.contiguous()), readable_rows(own))
    out: Tensor = kernels.spmm_where_equal(csr.indptr, csr.indices, *rows)
    return out.view(own.shape)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """A sparse matrix of features, one row a node.

    Attributes:
        csr: (n, F) structure.
        values: (nnz,) stored values.
    """

    csr: CSR
    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(n, F)."""
        return self.csr.num_rows, self.csr.num_cols

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    def size(self, dim: int) -> int:
        """Return one of the two sizes, as of a tensor."""
        return self.shape[dim]

    def mm(self, dense: Tensor) -> Tensor:
        """Multiply with a dense (F, K) matrix; differentiable in it."""
        return _SparseMatmul.apply(self, dense)  # type: ignore[no-any-return, no-untyped-call]

    @cached_property
    def dense(self) -> Tensor:
        """The same as a dense (n, F) tensor."""
        out = self.values.new_zeros(self.shape)
        return out.index_put_((self.csr.rows, self.csr.indices.long()), self.values, True)

    def to(self, target: torch.device | torch.dtype) -> "SparseRows":
        """Return a copy on another device, or with values of another dtype."""
        if isinstance(target, torch.dtype):
            return SparseRows(self.csr, self.values.to(target))
        return SparseRows(self.csr.to(target), self.values.to(target))


class _SparseMatmul(torch.autograd.Function):
    """rows @ dense, and its gradient for `dense`."""

    @staticmethod
    def forward(ctx, rows, dense):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.rows = rows
        return spmm_sum(rows.csr, dense, Factors(rows.values))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        transposed = ctx.rows.csr.transpose
        factors = Factors(ctx.rows.values, transposed.position)
        return None, spmm_sum(transposed.csr, grad, factors)
