"""Softmax over the entries of each row of a sparse structure."""

from torch import Tensor

from gnn_dist.ops.csr import CSR

__all__ = ["edge_softmax"]


def edge_softmax(csr: CSR, scores: Tensor) -> Tensor:
    """Normalise scores over each destination's in-edges; differentiable.

    Args:
        csr: (R, K) structure.
        scores: (nnz, H).

    Returns:
        (nnz, H): non-negative, each row's entries adding up to one.
    """
    index = csr.rows[:, None].expand_as(scores)
    largest = scores.new_full((csr.num_rows, scores.size(1)), float("-inf"))
    largest = largest.scatter_reduce(0, index, scores.detach(), "amax")
    exponent = (scores - largest.index_select(0, csr.rows)).exp()
    total = exponent.new_zeros((csr.num_rows, *exponent.shape[1:]))
    total = total.index_add(0, csr.rows, exponent)
    return exponent / (total.index_select(0, csr.rows) + 1e-16)
