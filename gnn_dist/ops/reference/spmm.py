"""Aggregation over a CSR structure."""

import warnings

import torch
from torch import Tensor

from gnn_dist.ops.native import operator

__all__ = ["row_index", "spmm", "spmm_add", "spmm_extreme", "spmm_share", "spmm_where_equal"]

INT32_LIMIT = 2**31


def row_index(indptr: Tensor, nnz: int) -> Tensor:
    """Return int64 (nnz,), the row of each entry."""
    rows = torch.arange(indptr.numel() - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff(), output_size=nnz)


def _rows_like(indptr: Tensor, indices: Tensor, x: Tensor, *_: Tensor | None) -> Tensor:
    return x.new_empty(indptr.numel() - 1, x.size(1))


def _nothing(*_: Tensor | bool | None) -> None:
    return None


@operator(_rows_like)
def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    position: Tensor | None = None,
    src_scale: Tensor | None = None,
    dst_scale: Tensor | None = None,
) -> Tensor:
    """Sum dst_scale[row] * weight[entry] * src_scale[column] * x[column] over each row's entries.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        x: (K, F), float32, float64, bfloat16 or float16; the last two are added up in float32.
        weight: (W,) or (W, H), H dividing F, of the accumulation dtype; head h multiplies the
            h-th F / H columns. W is nnz where there is no `position`.
        position: int32 (nnz,), where each entry's weight is.
        src_scale: (K,), of the accumulation dtype.
        dst_scale: (R,), of the accumulation dtype.

    Returns:
        (R, F), like `x`.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    num_rows, nnz = indptr.numel() - 1, indices.numel()
    if nnz == 0 or x.numel() == 0:
        return x.new_zeros(num_rows, x.size(1))
    if weight is not None and position is not None:
        weight = weight[position]
    if x.is_cuda and x.dtype == wide and (weight is None or weight.dim() == 1):
        out = _sparse_product(
            indptr, indices, x if src_scale is None else x * src_scale[:, None], weight
        )
    else:
        messages = x.index_select(0, indices).to(wide)
        if src_scale is not None:
            messages = messages * src_scale.index_select(0, indices)[:, None]
        if weight is not None:
            heads = weight.size(1) if weight.dim() == 2 else 1
            messages = (messages.view(nnz, heads, -1) * weight.view(nnz, heads, 1)).flatten(1)
        out = messages.new_zeros(num_rows, x.size(1))
        out.index_add_(0, row_index(indptr, nnz), messages)
    if dst_scale is not None:
        out = out * dst_scale[:, None]
    return out.to(x.dtype)


def _sparse_product(indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """Multiply by cuSPARSE. One index dtype for both arrays, of 32 bits where they suffice."""
    nnz = indices.numel()
    narrow = torch.int32 if nnz < INT32_LIMIT else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        matrix = torch.sparse_csr_tensor(
            indptr.to(narrow),
            indices.to(narrow),
            x.new_ones(nnz) if weight is None else weight,
            size=(indptr.numel() - 1, x.size(0)),
            check_invariants=False,
        )
    out: Tensor = matrix @ x
    return out


@operator(_nothing)
def spmm_add(
    out: Tensor,
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    position: Tensor | None = None,
    src_scale: Tensor | None = None,
    dst_scale: Tensor | None = None,
) -> None:
    """Add what `spmm` returns into `out` (R, F)."""
    out += spmm(indptr, indices, x, weight, position, src_scale, dst_scale)


@operator(_nothing)
def spmm_extreme(
    out: Tensor,
    count: Tensor,
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    largest: bool,
    add: bool,
) -> None:
    """Take the largest (or smallest) element of x over each row's entries, into `out`.

    Args:
        out: (R, F), like `x`; zero for rows without entries.
        count: int32 (R, F): how many entries reach the value; for a NaN, some positive number.
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        x: (K, F). A NaN beats every number.
        largest: Maximum instead of minimum.
        add: Go on from what `out` and `count` hold, where `count` is not zero.
    """
    nnz = indices.numel()
    if not add:
        out.zero_()
        count.zero_()
    if nnz == 0 or x.numel() == 0:
        return
    rows, messages = row_index(indptr, nnz), x.index_select(0, indices)
    out.masked_fill_(count == 0, float("-inf") if largest else float("inf"))
    before = out.clone()
    index = rows[:, None].expand_as(messages)
    out.scatter_reduce_(0, index, messages, "amax" if largest else "amin", include_self=True)
    count.masked_fill_(before < out if largest else before > out, 0)
    hit = (messages == out.index_select(0, rows)) | messages.isnan()
    count.index_add_(0, rows, hit.int())
    out.masked_fill_(count == 0, 0.0)


@operator(lambda grad, count: torch.empty_like(grad))
def spmm_share(grad: Tensor, count: Tensor) -> Tensor:
    """Divide the gradient of an extreme among the entries that reach it.

    Args:
        grad: (R, F), of any floating dtype.
        count: int32 (R, F), how many they are.

    Returns:
        grad / count, like `grad`; undefined where `count` is zero.
    """
    return (grad / count).to(grad.dtype)


@operator(lambda indptr, indices, x, second, own: torch.empty_like(own))
def spmm_where_equal(
    indptr: Tensor, indices: Tensor, x: Tensor, second: Tensor, own: Tensor
) -> Tensor:
    """Sum second[column] where x[column] equals own[row], over each row's entries.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        x: (K, F).
        second: (K, F), like `x`.
        own: (R, F).

    Returns:
        (R, F), like `own`.
    """
    rows = row_index(indptr, indices.numel())
    hit = x.index_select(0, indices) == own.index_select(0, rows)
    wide = torch.promote_types(x.dtype, torch.float32)
    messages = second.index_select(0, indices).to(wide) * hit
    return messages.new_zeros(own.shape).index_add_(0, rows, messages).to(own.dtype)
