"""Stochastic quantisation of rows."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.draws import draws

__all__ = ["dequantize_rows", "dequantize_rows_add", "quantize_rows"]


def _packed_like(x: Tensor, ids: Tensor, key: int, bits: int) -> tuple[Tensor, Tensor]:
    packed = x.new_empty(x.size(0), (x.size(1) * bits + 7) // 8, dtype=torch.uint8)
    return packed, x.new_empty(x.size(0), 2, dtype=torch.float32)


@operator(_packed_like)
def quantize_rows(x: Tensor, ids: Tensor, key: int, bits: int) -> tuple[Tensor, Tensor]:
    """Round rows at random to 2^bits levels between their smallest and largest value.

    Args:
        x: (n, F), floating point; computed in float32.
        ids: int64 (n,), of the rows.
        key: A draw key.
        bits: 1, 2, 4 or 8.

    Returns:
        uint8 (n, ceil(F * bits / 8)), levels of a row side by side, the first in the lowest bits;
        float32 (n, 2), smallest value and step of each row. Both are NaN for a row that is not
        finite or whose range overflows.
    """
    values = x.float()
    if x.size(1) == 0:
        return x.new_empty(x.size(0), 0, dtype=torch.uint8), values.new_zeros(x.size(0), 2)
    low, high = values.amin(1), values.amax(1)
    most = 2**bits - 1
    step = (high - low) / torch.full_like(low, most)
    usable = values.isfinite().all(1) & step.isfinite()
    params = torch.stack([low, step], 1).masked_fill_(~usable[:, None], torch.nan)
    uniform = (draws(ids, key, x.size(1)) >> 8).float() * 2**-24
    place = (values - low[:, None]) / step[:, None] + uniform
    place = torch.where((usable & (step > 0))[:, None], place, 0.0)
    return _pack(place.floor().clamp_(0, most).to(torch.uint8), bits), params


def _pack(levels: Tensor, bits: int) -> Tensor:
    per_byte = 8 // bits
    padded = torch.nn.functional.pad(levels, (0, -levels.size(1) % per_byte))
    shift = torch.arange(0, 8, bits, dtype=torch.uint8, device=levels.device)
    grouped = padded.view(levels.size(0), -1, per_byte)
    packed: Tensor = (grouped << shift).sum(2, dtype=torch.uint8)
    return packed


def _values_like(
    packed: Tensor, params: Tensor, num_cols: int, bits: int, dtype: torch.dtype
) -> Tensor:
    return params.new_empty(packed.size(0), num_cols, dtype=dtype)


@operator(_values_like)
def dequantize_rows(
    packed: Tensor, params: Tensor, num_cols: int, bits: int, dtype: torch.dtype
) -> Tensor:
    """Return (n, num_cols) of `dtype`: level * step + smallest value, in float32, rounded twice."""
    return _values(packed, params, num_cols, bits).to(dtype)


def _values(packed: Tensor, params: Tensor, num_cols: int, bits: int) -> Tensor:
    shift = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    levels: Tensor = ((packed[:, :, None] >> shift) & (2**bits - 1)).flatten(1)[:, :num_cols]
    return levels.float() * params[:, 1:] + params[:, :1]


def _nothing(*_: Tensor | int) -> None:
    return None


@operator(_nothing)
def dequantize_rows_add(out: Tensor, packed: Tensor, params: Tensor, bits: int) -> None:
    """Add what `dequantize_rows` stands for to `out` (n, F), which rounds once."""
    wide = torch.promote_types(out.dtype, torch.float32)
    out.copy_(out.to(wide) + _values(packed, params, out.size(1), bits).to(wide))
