"""Softmax over the entries of each row of a CSR structure."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.spmm import row_index

__all__ = ["edge_softmax", "edge_softmax_grad", "softmax_parts"]


def softmax_parts(indptr: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the softmax (nnz, H), and by row the largest scores and the sums of exponentials."""
    rows = row_index(indptr, scores.size(0))
    shape = (indptr.numel() - 1, scores.size(1))
    largest = scores.new_full(shape, float("-inf"))
    largest.scatter_reduce_(0, rows[:, None].expand_as(scores), scores, "amax")
    power = (scores - largest.index_select(0, rows)).exp()
    total = scores.new_zeros(shape).index_add_(0, rows, power)
    return power / total.index_select(0, rows), largest, total


@operator(lambda indptr, scores: torch.empty_like(scores))
def edge_softmax(indptr: Tensor, scores: Tensor) -> Tensor:
    """Normalise scores over each row's entries.

    Args:
        indptr: int64 (R + 1,).
        scores: (nnz, H), computed with in their accumulation dtype.

    Returns:
        (nnz, H), like `scores`. A row with a NaN, with plus infinity, or with nothing but
        minus infinities becomes NaN.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    return softmax_parts(indptr, scores.to(wide))[0].to(scores.dtype)


@operator(lambda indptr, alpha, grad: torch.empty_like(alpha))
def edge_softmax_grad(indptr: Tensor, alpha: Tensor, grad: Tensor) -> Tensor:
    """Return alpha * (grad - sum over the row of alpha * grad), (nnz, H), all alike."""
    wide = torch.promote_types(alpha.dtype, torch.float32)
    a, g = alpha.to(wide), grad.to(wide)
    rows = row_index(indptr, alpha.size(0))
    total = a.new_zeros(indptr.numel() - 1, a.size(1)).index_add_(0, rows, a * g)
    return (a * (g - total.index_select(0, rows))).to(alpha.dtype)
