"""Row movement."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator

__all__ = ["gather_rows", "gather_rows_into", "scatter_add_rows"]


def _gathered(x: Tensor, index: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.new_empty(index.numel(), x.size(1), dtype=dtype or x.dtype)


def _nothing(*_: Tensor) -> None:
    return None


@operator(_gathered)
def gather_rows(x: Tensor, index: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return x[index].

    Args:
        x: (N, F), any dtype.
        index: int64 or int32 (k,).
        dtype: Of the result; if not that of `x`, both are of floating point.

    Returns:
        (k, F).
    """
    return x.index_select(0, index).to(dtype or x.dtype)


@operator(_nothing)
def gather_rows_into(out: Tensor, x: Tensor, index: Tensor) -> None:
    """Write x[index] into `out` (k, F), in its dtype."""
    out.copy_(x.index_select(0, index))


@operator(_nothing)
def scatter_add_rows(out: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows[k] to out[index[k]], in order of k; two-byte numbers in float32, rounded once.

    Args:
        out: (N, F), floating point.
        index: int64 or int32 (k,).
        rows: (k, F), of the dtype of `out`.
    """
    wide = torch.promote_types(out.dtype, torch.float32)
    total = out.to(wide)
    if out.is_cuda:
        # Sorts, where index_add_ would leave the order to chance.
        total.index_put_((index.long(),), rows.to(wide), accumulate=True)
    else:
        total.index_add_(0, index, rows.to(wide))
    if total is not out:
        out.copy_(total)
