"""Counter-based draws, and the dropout that uses them.

Keys are 64 bits as signed integers (`DrawKey.value`). A probability is a threshold: an element is
dropped where its draw, an integer below 2^32, lies below the threshold.
"""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.words import GOLDEN, mix, row_keys, words

__all__ = [
    "bias_relu_dropout",
    "bias_relu_dropout_",
    "draws",
    "edge_ids",
    "keep_mask",
    "relu_dropout_grad",
    "uniform_by_id",
]

WORDS_AT_ONCE = 1 << 16  # mixed together: they stay in cache


def draws(ids: Tensor, key: int, num_cols: int) -> Tensor:
    """Return int64 (n, num_cols), numbers in [0, 2^32): two from each word, its low half first."""
    word = words(row_keys(key, ids), (num_cols + 1) // 2)
    halves = torch.stack([word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF], dim=2)
    return halves.flatten(1)[:, :num_cols]


def _mask_like(ids: Tensor, key: int, num_cols: int, threshold: int) -> Tensor:
    return ids.new_empty(ids.numel(), num_cols, dtype=torch.bool)


@operator(_mask_like)
def keep_mask(ids: Tensor, key: int, num_cols: int, threshold: int) -> Tensor:
    """Return bool (n, num_cols): whether the draws of int64 ids (n,) reach the threshold."""
    keep = torch.empty(ids.numel(), num_cols, dtype=torch.bool, device=ids.device)
    step = max(1, WORDS_AT_ONCE // max(1, num_cols))
    for start in range(0, ids.numel(), step):
        here = slice(start, start + step)
        torch.ge(draws(ids[here], key, num_cols), threshold, out=keep[here])
    return keep


@operator(lambda ids, key: ids.new_empty(ids.shape, dtype=torch.float64))
def uniform_by_id(ids: Tensor, key: int) -> Tensor:
    """Return float64 (n,) in [0, 1), multiples of 2^-53, for int64 ids (n,)."""
    return ((row_keys(key, ids) >> 11) & (2**53 - 1)).double() / 2**53


@operator(lambda src_id, dst_id, copy_number: torch.empty_like(src_id))
def edge_ids(src_id: Tensor, dst_id: Tensor, copy_number: Tensor) -> Tensor:
    """Return int64 (e,), keys of edges, from int64 (e,) ids of both ends and copy numbers."""
    return mix(mix(src_id + GOLDEN) + dst_id) + copy_number


def _like_x(x: Tensor, *_: Tensor | float | bool | None) -> Tensor:
    return x.new_empty(x.shape)


@operator(_like_x)
def bias_relu_dropout(
    x: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    key: int,
    threshold: int,
    scale: float,
    relu: bool,
) -> Tensor:
    """Return ((relu(x + bias) * scale) * keep), computed in the accumulation dtype, rounded once.

    Args:
        x: (n, F), floating point.
        bias: (F,), of the accumulation dtype.
        ids: int64 (n,), of the rows.
        key: A draw key.
        threshold: Elements with smaller draws are dropped.
        scale: Of kept elements.
        relu: False leaves the ReLU away.

    Returns:
        (n, F), like `x`. What is not finite stays visible: a NaN stays one, an infinity that is
        dropped becomes one.
    """
    value = x.to(torch.promote_types(x.dtype, torch.float32))
    if bias is not None:
        value = value + bias
    if relu:
        value = value.relu()
    return (value * scale).mul_(keep_mask(ids, key, x.size(1), threshold)).to(x.dtype)


def _nothing(*_: Tensor | float | bool | None) -> None:
    return None


@operator(_nothing)
def bias_relu_dropout_(
    x: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    key: int,
    threshold: int,
    scale: float,
    relu: bool,
) -> None:
    """Write what `bias_relu_dropout` returns into `x`."""
    x.copy_(bias_relu_dropout(x, bias, ids, key, threshold, scale, relu))


def _gradients_like(
    grad: Tensor,
    result: Tensor | None,
    ids: Tensor,
    key: int,
    threshold: int,
    scale: float,
    bias: bool,
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(grad.dtype, torch.float32)
    return grad.new_empty(grad.shape), grad.new_empty(grad.size(1) if bias else 0, dtype=wide)


@operator(_gradients_like)
def relu_dropout_grad(
    grad: Tensor,
    result: Tensor | None,
    ids: Tensor,
    key: int,
    threshold: int,
    scale: float,
    bias: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `bias_relu_dropout` for `x` and `bias`.

    Args:
        grad: (n, F), of the result.
        result: (n, F), what `bias_relu_dropout` returned, if it had a ReLU: above zero is what was
            kept and positive, and nothing is drawn again.
        ids: int64 (n,), as in the forward; so are `key`, `threshold` and `scale`.
        key: A draw key.
        threshold: Elements with smaller draws were dropped.
        scale: Of kept elements.
        bias: Whether to add up the columns.

    Returns:
        (n, F) like `grad`, and (F,) of the accumulation dtype, (0,) if not asked for.
    """
    wide = torch.promote_types(grad.dtype, torch.float32)
    value = grad.to(wide) * scale
    if result is None:
        value.mul_(keep_mask(ids, key, grad.size(1), threshold))
    else:
        value.masked_fill_(result <= 0, 0)
    total = value.double().sum(0).to(wide) if bias else value.new_empty(0)
    return value.to(grad.dtype), total
