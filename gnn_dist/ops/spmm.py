"""Aggregation over a sparse structure: out[row] = reduce over its entries of weight * x[column].

Plain PyTorch. The functions here are pieces without autograd, because an aggregation over owned
and halo sources is put together from them (`gnn_dist.halo.aggregate`); `SparseRows.mm` is the
differentiable product with sparse features.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.ops.csr import CSR

__all__ = ["SparseRows", "sddmm", "spmm_extreme", "spmm_sum", "tie_counts", "tie_gradient"]

SPARSE_MM_DTYPES = (torch.float32, torch.float64)


def spmm_sum(csr: CSR, x: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum rows of `x` along the entries of each row.

    Args:
        csr: (R, K) structure.
        x: (K, ...), one row per column of `csr`.
        weight: None (all ones), (nnz,), or (nnz, H) with `x` (K, H, ...).

    Returns:
        (R, ...), like `x`; zero for rows without entries.
    """
    trailing = x.shape[1:]
    if csr.nnz == 0 or x.numel() == 0:
        return x.new_zeros((csr.num_rows, *trailing))
    if x.dtype in SPARSE_MM_DTYPES and (weight is None or weight.dim() == 1):
        values = x.new_ones(csr.nnz) if weight is None else weight
        out: Tensor = csr.matrix(values) @ x.reshape(csr.num_cols, -1)
        return out.view(csr.num_rows, *trailing)
    return _gather_scatter(csr, x, weight)


def _gather_scatter(csr: CSR, x: Tensor, weight: Tensor | None) -> Tensor:
    # Half precision is accumulated in float32.
    dtype = torch.promote_types(x.dtype, torch.float32)
    messages = x.index_select(0, csr.indices).to(dtype)
    if weight is not None:
        messages = messages * _broadcast(weight, messages)
    out = messages.new_zeros((csr.num_rows, *x.shape[1:])).index_add_(0, csr.rows, messages)
    return out.to(x.dtype)


def sddmm(csr: CSR, rows: Tensor, columns: Tensor, heads: bool) -> Tensor:
    """Take the inner product of both ends' vectors for each entry.

    Args:
        csr: (R, K) structure.
        rows: (R, ...) vectors of rows.
        columns: (K, ...) vectors of columns, of equal trailing shape.
        heads: Keep the first trailing dimension (H) apart instead of summing over it.

    Returns:
        (nnz,), or (nnz, H).
    """
    product = rows.index_select(0, csr.rows) * columns.index_select(0, csr.indices)
    kept = 2 if heads else 1
    return product.flatten(kept).sum(-1) if product.dim() > kept else product


def spmm_extreme(csr: CSR, x: Tensor, reduce: str) -> Tensor:
    """Take the largest (`max`) or smallest (`min`) element along the entries of each row.

    Returns:
        (R, ...), like `x`; minus (plus) infinity for rows without entries.
    """
    fill = float("-inf") if reduce == "max" else float("inf")
    out = x.new_full((csr.num_rows, *x.shape[1:]), fill)
    if csr.nnz == 0 or x.numel() == 0:
        return out
    index = _broadcast(csr.rows, x).expand(-1, *x.shape[1:])
    messages = x.index_select(0, csr.indices)
    return out.scatter_reduce_(0, index, messages, f"a{reduce}", include_self=True)


def tie_counts(csr: CSR, x: Tensor, out: Tensor) -> Tensor:
    """Count, for each element of `out`, the entries that reach it.

    Args:
        csr: (R, K) structure.
        x: (K, ...).
        out: (R, ...), the extreme values.

    Returns:
        (R, ...) of the dtype of `x`.
    """
    hit = x.index_select(0, csr.indices) == out.index_select(0, csr.rows)
    return torch.zeros_like(out).index_add_(0, csr.rows, hit.to(out.dtype))


def tie_gradient(csr: CSR, x: Tensor, out: Tensor, share: Tensor) -> Tensor:
    """Send `share` (R, ...) back to every entry that reaches the extreme value.

    Returns:
        (K, ...), like `x`.
    """
    hit = x.index_select(0, csr.indices) == out.index_select(0, csr.rows)
    messages = share.index_select(0, csr.rows) * hit
    return torch.zeros_like(x).index_add_(0, csr.indices, messages)


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

    @cached_property
    def transposed(self) -> tuple[CSR, Tensor]:
        """The transposed structure and its values."""
        transposed = self.csr.transpose
        return transposed.csr, transposed.take(self.values)


class _SparseMatmul(torch.autograd.Function):
    """rows @ dense, and its gradient for `dense`."""

    @staticmethod
    def forward(ctx, rows, dense):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.rows = rows
        return spmm_sum(rows.csr, dense, rows.values.to(dense.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        csr, values = ctx.rows.transposed
        return None, spmm_sum(csr, grad, values.to(grad.dtype))


def _broadcast(values: Tensor, like: Tensor) -> Tensor:
    return values.view(*values.shape, *(1,) * (like.dim() - values.dim()))
