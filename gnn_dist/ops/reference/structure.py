"""Structures made from structures."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["cut_columns", "transpose_csr"]

INT32_LIMIT = 2**31


def _fake(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    return indptr.new_empty(num_cols + 1), torch.empty_like(indices), torch.empty_like(indices)


@operator(_fake)
def transpose_csr(indptr: Tensor, indices: Tensor, num_cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Transpose a structure; within a row of the result, entries keep their order.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        num_cols: Number of columns.

    Returns:
        indptr int64 (num_cols + 1,), indices int32 (nnz,), and int32 (nnz,), the position of each
        entry in the original.
    """
    order = torch.argsort(indices, stable=True)
    counts = torch.bincount(indices, minlength=num_cols)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return offsets, row_index(indptr, indices.numel()).int()[order], order.int()


def _fake_cut(
    indptr: Tensor, indices: Tensor, bounds: Tensor, positions: bool
) -> tuple[Tensor, Tensor, Tensor]:
    position = indices.new_empty(indices.numel() if positions else 0)
    return indptr.new_empty(bounds.numel() - 1, indptr.numel()), torch.empty_like(indices), position


@operator(_fake_cut)
def cut_columns(
    indptr: Tensor, indices: Tensor, bounds: Tensor, positions: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut a structure into ranges of its columns; entries of a row keep their order.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        bounds: int64 (B + 1,), from 0 to the number of columns, never falling.
        positions: Whether the third result is wanted.

    Returns:
        indptr int64 (B, R + 1) of each range; int32 (nnz,), columns one range after the other,
        each counted from where its range begins; and (nnz,), the position of each entry in the
        original, int32 where that suffices, or (0,).
    """
    part = torch.searchsorted(bounds[1:].contiguous(), indices.long(), right=True)
    order = torch.argsort(part, stable=True)
    rows = row_index(indptr, indices.numel())
    num_rows, num_parts = indptr.numel() - 1, bounds.numel() - 1
    counts = torch.bincount(part * num_rows + rows, minlength=num_parts * num_rows)
    ends = counts.view(num_parts, num_rows).cumsum(1)
    columns = (indices - bounds[part]).to(indices.dtype)[order]
    offsets = torch.cat([ends.new_zeros(num_parts, 1), ends], 1)
    position = order if positions else order[:0]
    return offsets, columns, position.int() if len(order) < INT32_LIMIT else position
