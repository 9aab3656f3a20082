"""Inner products of both ends' rows, for each entry of a sparse structure."""

from torch import Tensor

from gnn_dist.ops.csr import CSR
from gnn_dist.ops.native import kernels

__all__ = ["sddmm"]


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
