"""Rows in 8, 4, 2 or 1 bits an element, rounded at random so that they are right on average.

A row is stored as levels between its smallest and largest value. An element at the place t between
two levels goes to floor(t + u), u uniform in [0, 1): its expectation is t. Draws are by id, so a
row is rounded the same wherever it is.

Source: "AdaQP: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN
Training" (arXiv:2306.01381), section 3.1; the rounding is that of "QSGD" (arXiv:1610.02132).
"""

import torch
from torch import Tensor

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels
from gnn_dist.ops.rows import readable_rows

__all__ = ["dequantize_rows", "dequantize_rows_add", "packed_width", "quantize_rows"]


def packed_width(num_cols: int, bits: int) -> int:
    """Return the bytes of one packed row."""
    return (num_cols * bits + 7) // 8


def quantize_rows(x: Tensor, ids: Tensor, key: DrawKey, bits: int) -> tuple[Tensor, Tensor]:
    """Round rows to few bits.

    Args:
        x: (n, F), float32, float64, bfloat16 or float16; computed in float32.
        ids: int64 (n,), original id of each row.
        key: Seed, step and site.
        bits: 1, 2, 4 or 8 for each element.

    Returns:
        Packed levels, uint8 (n, ceil(F * bits / 8)), and float32 (n, 2): smallest value and step of
        each row. Both are NaN for a row that holds a NaN or an infinity, or whose range is not a
        float32 number: what is made of it again is NaN throughout.

    Raises:
        ValueError: Shapes, dtypes or `bits` do not fit.
    """
    packed, params = kernels.quantize_rows(readable_rows(x), ids.contiguous(), key.value, bits)
    return packed, params


def dequantize_rows(
    packed: Tensor, params: Tensor, *, num_cols: int, bits: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the rows (n, num_cols) that `quantize_rows` has packed.

    Args:
        packed: uint8 (n, ceil(num_cols * bits / 8)).
        params: float32 (n, 2).
        num_cols: F.
        bits: As they were packed.
        dtype: float32, float64, bfloat16 or float16.

    Raises:
        ValueError: Shapes, dtypes or `bits` do not fit.
    """
    out: Tensor = kernels.dequantize_rows(
        packed.contiguous(), params.contiguous(), num_cols, bits, dtype
    )
    return out


def dequantize_rows_add(out: Tensor, packed: Tensor, params: Tensor, *, bits: int) -> Tensor:
    """Add the rows that `quantize_rows` has packed to `out` (n, F), and return it."""
    kernels.dequantize_rows_add(out, packed.contiguous(), params.contiguous(), bits)
    return out
