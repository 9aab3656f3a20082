"""Attention over a CSR structure whose score is not a sum over both ends."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.attention import (
    DropArguments,
    Drops,
    attend,
    by_head,
    entries_of,
    pack_state,
    padded_heads,
    row_softmax,
    score_gradient,
    slopes,
)

__all__ = ["gatv2", "gatv2_grad"]

FIELDS = 3  # of a state


def _like_gatv2(
    indptr: Tensor,
    indices: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor]:
    num_dst = indptr.numel() - 1
    state = att.new_empty(num_dst, FIELDS * padded_heads(att.size(0)))
    return x_src.new_empty(num_dst, x_src.size(1)), state


@operator(_like_gatv2)
def gatv2(
    indptr: Tensor,
    indices: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    slope: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor]:
    """Attend with score <att, leaky_relu(x_src[c] + x_dst[r])> and value x_src[c], by head.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        x_src: (K, H F).
        x_dst: (R, H F), like `x_src`.
        att: (H, F), of the accumulation dtype.
        slope: Of the leaky ReLU for negative values.
        *drops: `Drops`.

    Returns:
        out (R, H F) like `x_src`; state (R, 3 lanes).
    """
    heads = att.size(0)
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    value = by_head(x_src, heads)
    z = value.index_select(0, indices) + by_head(x_dst, heads).index_select(0, entries.rows)
    alpha, largest, inverse = row_softmax(indptr, (z * slopes(z, slope) * att).sum(2))
    out = attend(entries, alpha, value).to(x_src.dtype)
    return out, pack_state(largest, inverse, torch.zeros_like(largest))


def _like_gatv2_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return x_src.new_empty(x_src.shape), x_src.new_empty(x_dst.shape), torch.empty_like(att)


@operator(_like_gatv2_grad)
def gatv2_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x_src: Tensor,
    x_dst: Tensor,
    att: Tensor,
    state: Tensor,
    out: Tensor,
    grad: Tensor,
    slope: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `gatv2` for `x_src`, `x_dst` and `att`.

    `state` and `out` are what the forward returned, `grad` (R, H F) is the gradient of `out`,
    `t_indptr` and `t_indices` are the transposed structure; the others are those of the forward.
    """
    heads = att.size(0)
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    value = by_head(x_src, heads)
    z = value.index_select(0, indices) + by_head(x_dst, heads).index_select(0, entries.rows)
    steep = slopes(z, slope)
    alpha, _, _ = row_softmax(indptr, (z * steep * att).sum(2))
    change, grad_value = score_gradient(entries, alpha, by_head(grad, heads), value)
    grad_z = change[:, :, None] * att * steep
    grad_att = (change[:, :, None] * z * steep).sum(0)
    grad_value += entries.to_columns(grad_z, x_src.size(0))
    grad_dst = entries.to_rows(grad_z).flatten(1).to(x_src.dtype)
    return grad_value.flatten(1).to(x_src.dtype), grad_dst, grad_att
