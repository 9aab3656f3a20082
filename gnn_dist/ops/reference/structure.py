"""Structures made from structures."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["transpose_csr"]


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
