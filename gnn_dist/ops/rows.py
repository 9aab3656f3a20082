"""Moving rows: whole rows by index, into a buffer or added to others.

A gather is bound by memory: the operator asks for rows long before it uses them, and converts
between floating-point dtypes on the way.
"""

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.ops.native import kernels

__all__ = [
    "as_rows",
    "gather_rows",
    "gather_rows_into",
    "new_rows_like",
    "readable_rows",
    "scatter_add_rows",
]


def gather_rows(x: Tensor, index: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return x[index], differentiable.

    Args:
        x: (N, ...), any dtype.
        index: int64 or int32 (k,).
        dtype: Of the result; if not that of `x`, both are float32, float64, bfloat16 or float16.

    Returns:
        (k, ...).

    Raises:
        IndexError: An index is negative or not below N.
    """
    out: Tensor = _Gather.apply(x, index, dtype)  # type: ignore[no-untyped-call]
    return out


def gather_rows_into(out: Tensor, x: Tensor, index: Tensor) -> Tensor:
    """Write x[index] into `out` and return it; not differentiable.

    Args:
        out: (k, ...), whose dtype decides what rows become; its rows may lie apart.
        x: (N, ...), as in `gather_rows`; shares no memory with `out`.
        index: int64 or int32 (k,).

    Raises:
        IndexError: An index is negative or not below N; what `out` then holds is undefined.
        ValueError: Shapes or dtypes do not fit.
    """
    kernels.gather_rows_into(as_rows(out), readable_rows(x), index.contiguous())
    return out


def scatter_add_rows(out: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add rows[k] to out[index[k]] and return `out`; not differentiable.

    Rows that meet in one place are added in order of k, whatever the number of threads. Two-byte
    numbers are added up in float32 and rounded once.

    Args:
        out: (N, ...), float32, float64, bfloat16 or float16.
        index: int64 or int32 (k,).
        rows: (k, ...), of the dtype of `out`.

    Raises:
        IndexError: An index is negative or not below N; `out` is unchanged.
        ValueError: Shapes or dtypes do not fit.
    """
    kernels.scatter_add_rows(as_rows(out), index.contiguous(), readable_rows(rows))
    return out


def new_rows_like(x: Tensor, num_rows: int) -> Tensor:
    """Return an uninitialised tensor (num_rows, ...) like rows x (n, ...), reusing memory."""
    out: Tensor = kernels.empty_rows(x, num_rows, math.prod(x.shape[1:]))
    return out.view(num_rows, *x.shape[1:])


def as_rows(x: Tensor) -> Tensor:
    """Return a view (n, F) of x (n, ...), for operators that write.

    Raises:
        RuntimeError: The dimensions after the first do not form rows without a copy.
    """
    return x.view(x.size(0), math.prod(x.shape[1:]))


def readable_rows(x: Tensor) -> Tensor:
    """Return x (n, ...) as (n, F) with contiguous rows, a view where that is possible."""
    rows = x.reshape(x.size(0), math.prod(x.shape[1:]))
    return rows if rows.size(1) < 2 or rows.stride(1) == 1 else rows.contiguous()


class _Gather(torch.autograd.Function):
    """Forward: rows by index. Backward: their gradients, added up no narrower than float32."""

    @staticmethod
    def forward(ctx, x, index, dtype):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        index = index.contiguous()
        ctx.save_for_backward(index)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        out = kernels.gather_rows(readable_rows(x), index, dtype)
        return out.view(index.numel(), *x.shape[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (index,) = ctx.saved_tensors
        wide = torch.promote_types(ctx.dtype, torch.float32)
        total = scatter_add_rows(grad.new_zeros(ctx.shape, dtype=wide), index, grad.to(wide))
        return total.to(ctx.dtype), None, None
