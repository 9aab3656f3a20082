"""Inner products of both ends' rows, for each entry of a sparse structure."""

from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels

__all__ = ["sddmm", "weight_gradient"]


def sddmm(csr: CSR, rows: Tensor, columns: Tensor, heads: bool) -> Tensor:
    """Take the inner product of both ends' vectors for each entry.

    Args:
        csr: (R, K) structure.
        rows: (R, ...) vectors of rows.
        columns: (K, ...) vectors of columns, of equal trailing shape and dtype.
        heads: Keep the first trailing dimension (H) apart instead of summing over it.

    Returns:
        (nnz,), or (nnz, H), of the dtype that rows are added up in.
    """
    number = columns.size(1) if heads else 1
    width = columns.shape[1:].numel()
    ends = (side.reshape(side.size(0), width).contiguous() for side in (rows, columns))
    out: Tensor = kernels.sddmm(csr.indptr, csr.indices, *ends, number)
    return out if heads else out.squeeze(1)


def weight_gradient(
    csr: CSR, grad: Tensor, x: Tensor, *, like: Tensor, src: Tensor | None = None
) -> Tensor:
    """Return the gradient of the weights of a sum along rows: one inner product for each entry.

    Args:
        csr: (R, K) structure.
        grad: (R, F), gradient of the sum, times the factors of its rows.
        x: (K, F), what was summed.
        like: (nnz', ...), the weights; (nnz', H) has one weight for each F / H columns.
        src: (K,), factors of the columns.

    Returns:
        (nnz, ...), of the dtype of `like`.
    """
    heads = like.size(1) if like.dim() == 2 else 1

    def by_head(rows: Tensor) -> Tensor:
        return rows.reshape(rows.size(0), heads, rows.size(1) // heads)

    product = sddmm(csr, by_head(grad), by_head(x), True).view(-1, *like.shape[1:])
    if src is not None:
        factor = src.to(product.dtype).index_select(0, csr.indices)
        product = product * factor.view(-1, *(1,) * (product.dim() - 1))
    return product.to(like.dtype)
