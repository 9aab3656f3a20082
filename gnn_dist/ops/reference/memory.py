"""New matrices."""

from torch import Tensor

from gnn_dist.ops.native import operator

__all__ = ["empty_rows"]


@operator(lambda like, num_rows, width: like.new_empty(num_rows, width))
def empty_rows(like: Tensor, num_rows: int, width: int) -> Tensor:
    """Return an uninitialised matrix (num_rows, width) like `like`."""
    return like.new_empty(num_rows, width)
