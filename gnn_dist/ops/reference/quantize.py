"""Stochastic quantisation of rows."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.draws import draws

__all__ = ["dequantize_rows", "dequantize_rows_into", "quantize_rows", "quantize_rows_into"]

GRID_BYTES = 4
BFLOAT16_NAN = 0x7FC0


def _packed_like(x: Tensor, index: Tensor | None, ids: Tensor, key: int, bits: int) -> Tensor:
    width = GRID_BYTES + (x.size(1) * bits + 7) // 8
    return x.new_empty(ids.size(0), width, dtype=torch.uint8)


@operator(_packed_like)
def quantize_rows(x: Tensor, index: Tensor | None, ids: Tensor, key: int, bits: int) -> Tensor:
    """Round rows at random to 2^bits levels that cover their smallest and largest value.

    Args:
        x: (N, F), floating point; computed in float32.
        index: int64 (n,), which rows; None for all.
        ids: int64 (n,), of the rows.
        key: A draw key.
        bits: 1, 2, 4 or 8.

    Returns:
        uint8 (n, 4 + ceil(F * bits / 8)): lowest level and step in bfloat16, then levels side by
        side, the first in the lowest bits. Both parameters are NaN for a row that is not finite or
        that the levels cannot span.
    """
    values = (x if index is None else x.index_select(0, index)).float()
    most = 2**bits - 1
    low, step, usable = _grid(values, most)
    uniform = (draws(ids, key, x.size(1)) >> 8).float() * 2**-24
    place = (values - low[:, None]) / step[:, None] + uniform
    place = torch.where((usable & (step > 0))[:, None], place, 0.0)
    levels = _pack(place.floor().clamp_(0, most).to(torch.uint8), bits)
    grid = torch.stack([low, step], 1).view(torch.int32) >> 16
    grid = grid.masked_fill_(~usable[:, None], BFLOAT16_NAN).to(torch.int16)
    return torch.cat([grid.view(torch.uint8), levels], 1)


def _grid(values: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lowest level and the step of each row, bfloat16 as float32, and whether of use."""
    low, high = values.new_zeros(2, len(values))
    if values.size(1) > 0:
        low, high = values.amin(1), values.amax(1)
    low = _rounded_out(low + 0.0, low < 0)
    span = high - low + 0.0  # no zero is negative
    step = _rounded_out(span / torch.full_like(span, most), torch.ones_like(span, dtype=torch.bool))
    bumped = (step.view(torch.int32) + 0x10000).view(torch.float32)
    step = torch.where(step * most < span, bumped, step)
    return low, step, values.isfinite().all(1) & (step * most).isfinite()


def _rounded_out(values: Tensor, away: Tensor) -> Tensor:
    """Round to bfloat16, away from zero or towards it."""
    bits = values.view(torch.int32) + torch.where(away, 0xFFFF, 0).int()
    return (bits & -0x10000).view(torch.float32)


def _pack(levels: Tensor, bits: int) -> Tensor:
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(levels, (0, -levels.size(1) % per_byte))
    shift = torch.arange(0, 8, bits, dtype=torch.uint8, device=levels.device)
    grouped = padded.view(levels.size(0), padded.size(1) // per_byte, per_byte)
    packed: Tensor = (grouped << shift).sum(2, dtype=torch.uint8)
    return packed


def _nothing(*_: Tensor | int | None) -> None:
    return None


@operator(_nothing)
def quantize_rows_into(
    out: Tensor, x: Tensor, index: Tensor | None, ids: Tensor, key: int, bits: int
) -> None:
    """Write what `quantize_rows` returns to `out`."""
    out.copy_(quantize_rows(x, index, ids, key, bits))


def _values_like(packed: Tensor, num_cols: int, bits: int, dtype: torch.dtype) -> Tensor:
    return packed.new_empty(packed.size(0), num_cols, dtype=dtype)


@operator(_values_like)
def dequantize_rows(packed: Tensor, num_cols: int, bits: int, dtype: torch.dtype) -> Tensor:
    """Return (n, num_cols) of `dtype`: level * step + lowest, in float32, rounded twice.

    Values saturate at the largest number of `dtype`, which the highest level may lie above.
    """
    return _values(packed, num_cols, bits, dtype).to(dtype)


def _values(packed: Tensor, num_cols: int, bits: int, dtype: torch.dtype) -> Tensor:
    grid = packed[:, :GRID_BYTES].clone(memory_format=torch.contiguous_format)
    grid = grid.view(torch.bfloat16).float()
    shift = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    levels = (packed[:, GRID_BYTES:, None] >> shift) & (2**bits - 1)
    levels = levels.flatten(1)[:, :num_cols].float()
    largest = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max)
    values: Tensor = levels * grid[:, 1:] + grid[:, :1]
    return values.clamp_(-largest, largest)


@operator(_nothing)
def dequantize_rows_into(out: Tensor, packed: Tensor, bits: int, add: bool) -> None:
    """Write what `dequantize_rows` stands for to `out` (n, F), or add it, which rounds once."""
    values = _values(packed, out.size(1), bits, out.dtype)
    if add:
        wide = torch.promote_types(out.dtype, torch.float32)
        values = out.to(wide) + values.to(wide)
    out.copy_(values)
