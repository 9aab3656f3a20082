"""Rows in 8, 4, 2 or 1 bits an element, rounded at random so that they are right on average.

    packed row      | lowest level | step     | level of column 0, 1, ... (bits each)    |
                    | bfloat16     | bfloat16 | the first in the lowest bits of a byte   |

An element at the place t between two levels goes to floor(t + u), u uniform in [0, 1): its
expectation is t. Draws are by id, so a row is rounded the same wherever it is. The lowest level is
the row's smallest value rounded down, the step is rounded up, both before anything is measured in
them: the levels cover the row, and the short parameters cost precision (a step that is up to 1%
longer; more for a row whose range is far below its values), but never the expectation.

Source: "AdaQP: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN
Training" (arXiv:2306.01381), section 3.1; the rounding is that of "QSGD" (arXiv:1610.02132).
"""

import torch
from torch import Tensor

from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference.quantize import GRID_BYTES
from gnn_dist.ops.rows import as_rows, readable_rows

__all__ = [
    "BITS",
    "dequantize_rows",
    "dequantize_rows_add",
    "dequantize_rows_into",
    "packed_width",
    "quantize_rows",
    "quantize_rows_into",
    "steps_of",
]

BITS = (1, 2, 4, 8)


def packed_width(num_cols: int, bits: int) -> int:
    """Return the bytes of one packed row, its parameters included."""
    return GRID_BYTES + (num_cols * bits + 7) // 8


def quantize_rows(
    x: Tensor, ids: Tensor, *, key: DrawKey, bits: int, index: Tensor | None = None
) -> Tensor:
    """Round rows to few bits.

    Args:
        x: (N, ...), float32, float64, bfloat16 or float16; computed in float32.
        ids: int64 (n,), original id of each row.
        key: Seed, step and site.
        bits: 1, 2, 4 or 8 for each element.
        index: int64 (n,), which rows; None for all.

    Returns:
        uint8 (n, packed_width(F, bits)), F being the elements of a row. The parameters are NaN for
        a row that holds a NaN or an infinity, or is out of reach (a range above 3.3e38, a value
        below -3.38e38): what is made of it again is NaN throughout.

    Raises:
        IndexError: An index is negative or not below N.
        ValueError: Shapes, dtypes or `bits` do not fit.
    """
    index = None if index is None else index.contiguous()
    packed: Tensor = kernels.quantize_rows(
        readable_rows(x), index, ids.contiguous(), key.value, bits
    )
    return packed


def quantize_rows_into(
    out: Tensor, x: Tensor, ids: Tensor, *, key: DrawKey, bits: int, index: Tensor | None = None
) -> Tensor:
    """Write what `quantize_rows` returns to `out`, whose rows may lie apart, and return it."""
    index = None if index is None else index.contiguous()
    kernels.quantize_rows_into(out, readable_rows(x), index, ids.contiguous(), key.value, bits)
    return out


def dequantize_rows(
    packed: Tensor, *, num_cols: int, bits: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the rows (n, num_cols) that `quantize_rows` has packed.

    The highest level may lie a little above the row that was packed. Where it lies above the
    largest number of `dtype`, it is that number.

    Args:
        packed: uint8 (n, packed_width(num_cols, bits)).
        num_cols: F.
        bits: As they were packed.
        dtype: float32, float64, bfloat16 or float16.

    Raises:
        ValueError: Shapes, dtypes or `bits` do not fit.
    """
    out: Tensor = kernels.dequantize_rows(packed, num_cols, bits, dtype)
    return out


def dequantize_rows_into(out: Tensor, packed: Tensor, *, bits: int) -> Tensor:
    """Write the rows that `quantize_rows` has packed to `out` (n, ...), and return it."""
    kernels.dequantize_rows_into(as_rows(out), packed, bits, False)
    return out


def dequantize_rows_add(out: Tensor, packed: Tensor, *, bits: int) -> Tensor:
    """Add the rows that `quantize_rows` has packed to `out` (n, ...), and return it."""
    kernels.dequantize_rows_into(as_rows(out), packed, bits, True)
    return out


def steps_of(packed: Tensor) -> Tensor:
    """Return the steps, float32 (n,), between the levels of packed rows: NaN for unusable rows."""
    steps = packed[:, 2:GRID_BYTES].clone(memory_format=torch.contiguous_format)
    return steps.view(torch.bfloat16).flatten().float()
