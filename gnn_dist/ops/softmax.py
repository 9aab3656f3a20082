"""Softmax over the entries of each row of a sparse structure."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels

__all__ = ["edge_softmax"]


def edge_softmax(csr: CSR, scores: Tensor) -> Tensor:
    """Normalise scores over each destination's in-edges; differentiable.

    Args:
        csr: (R, K) structure.
        scores: (nnz, H).

    Returns:
        (nnz, H): non-negative, each row's entries adding up to one.
    """
    return _EdgeSoftmax.apply(scores.contiguous(), csr.indptr)  # type: ignore[no-any-return, no-untyped-call]


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, indptr: Tensor) -> Tensor:
        alpha: Tensor = kernels.edge_softmax(indptr, scores)
        ctx.save_for_backward(alpha, indptr)
        return alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        alpha, indptr = ctx.saved_tensors
        return kernels.edge_softmax_grad(indptr, alpha, grad.contiguous()), None
