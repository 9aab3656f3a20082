"""Inner products of both ends' rows, for each entry of a CSR structure."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["sddmm"]


def _like_sddmm(
    indptr: Tensor, indices: Tensor, rows: Tensor, columns: Tensor, heads: int = 1
) -> Tensor:
    wide = torch.promote_types(columns.dtype, torch.float32)
    return columns.new_empty(indices.numel(), heads, dtype=wide)


@operator(_like_sddmm)
def sddmm(indptr: Tensor, indices: Tensor, rows: Tensor, columns: Tensor, heads: int = 1) -> Tensor:
    """Return (nnz, H) of the accumulation dtype: <rows[r], columns[c]> by head.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        rows: (R, H F).
        columns: (K, H F), like `rows`.
        heads: H.
    """
    wide = torch.promote_types(columns.dtype, torch.float32)
    here = rows.index_select(0, row_index(indptr, indices.numel())).to(wide)
    product = here * columns.index_select(0, indices).to(wide)
    return product.view(product.size(0), heads, product.size(1) // heads).sum(2)
