"""Graph attention over a CSR structure: a score that is a sum over both ends."""

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
    pad_heads,
    padded_heads,
    row_softmax,
    score_gradient,
    slopes,
)

__all__ = ["gat", "gat_grad", "gat_grad_over"]

FIELDS = 4  # of a state


def _like_gat(
    indptr: Tensor, indices: Tensor, x: Tensor, att_src: Tensor, *_: Tensor | float | None
) -> tuple[Tensor, Tensor, Tensor]:
    num_dst, lanes = indptr.numel() - 1, padded_heads(att_src.size(0))
    return (
        x.new_empty(num_dst, x.size(1)),
        att_src.new_empty(x.size(0), lanes),
        att_src.new_empty(num_dst, FIELDS * lanes),
    )


@operator(_like_gat)
def gat(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    slope: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attend with score leaky_relu(<x[c], att_src> + <x[r], att_dst>) and value x[c], by head.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        x: (K, H F), K at least R: the first rows are the destinations.
        att_src: (H, F), of the accumulation dtype of `x`.
        att_dst: (H, F).
        slope: Of the leaky ReLU for negative values.
        *drops: `Drops`.

    Returns:
        out (R, H F) like `x`; <x, att_src> (K, lanes); state (R, 4 lanes).
    """
    heads = att_src.size(0)
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    value = by_head(x, heads)
    by_src, by_dst = (value * att_src).sum(2), (value[: entries.num_rows] * att_dst).sum(2)
    z = by_src.index_select(0, indices) + by_dst.index_select(0, entries.rows)
    alpha, largest, inverse = row_softmax(indptr, z * slopes(z, slope))
    state = pack_state(largest, inverse, torch.zeros_like(largest), by_dst)
    return attend(entries, alpha, value).to(x.dtype), pad_heads(by_src), state


def _like_gat_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x: Tensor,
    att_src: Tensor,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(att_src), torch.empty_like(att_src)


@operator(_like_gat_grad)
def gat_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    score: Tensor,
    state: Tensor,
    grad: Tensor,
    slope: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `gat` for `x`, `att_src` and `att_dst`.

    Args:
        indptr: As in the forward, like all that is not mentioned.
        indices: int32 (nnz,).
        t_indptr: int64 (K + 1,), of the transposed structure.
        t_indices: int32 (nnz,).
        x: (K, H F).
        att_src: (H, F).
        att_dst: (H, F).
        score: What the forward returned second.
        state: What the forward returned third.
        grad: (R, H F), of its first result.
        slope: Of the leaky ReLU.
        *drops: `Drops`.
    """
    heads = att_src.size(0)
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    value, lanes = by_head(x, heads), padded_heads(heads)
    by_dst = state[:, 3 * lanes : 3 * lanes + heads]
    z = score[:, :heads].index_select(0, indices) + by_dst.index_select(0, entries.rows)
    alpha, _, _ = row_softmax(indptr, z * slopes(z, slope))
    change, grad_value = score_gradient(entries, alpha, by_head(grad, heads), value)
    change = change * slopes(z, slope)
    src_change, dst_change = entries.to_columns(change, x.size(0)), entries.to_rows(change)
    grad_value += src_change[:, :, None] * att_src
    grad_value[: entries.num_rows] += dst_change[:, :, None] * att_dst
    grad_src = (src_change[:, :, None] * value).sum(0)
    grad_dst = (dst_change[:, :, None] * value[: entries.num_rows]).sum(0)
    return grad_value.flatten(1).to(x.dtype), grad_src, grad_dst


def _like_gat_grad_over(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x: Tensor,
    att_src: Tensor,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(att_src), torch.empty_like(att_src)


@operator(_like_gat_grad_over)
def gat_grad_over(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    x: Tensor,
    att_src: Tensor,
    att_dst: Tensor,
    score: Tensor,
    state: Tensor,
    grad: Tensor,
    slope: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor]:
    """Write the gradient of `gat` for `x` over `x`, and return those of `att_src` and `att_dst`.

    The arguments are those of `gat_grad`. What is written to `state` is no result.
    """
    before = (indptr, indices, t_indptr, t_indices, x, att_src, att_dst, score, state, grad, slope)
    grad_x, grad_src, grad_dst = gat_grad(*before, *drops)
    x.copy_(grad_x)
    return grad_src, grad_dst
