"""Dot-product attention over a CSR structure."""

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
)

__all__ = ["dot_attention", "dot_attention_grad"]

FIELDS = 3  # of a state


def _like_dot_attention(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor]:
    num_dst, wide = indptr.numel() - 1, torch.promote_types(value.dtype, torch.float32)
    state = value.new_empty(num_dst, FIELDS * padded_heads(heads), dtype=wide)
    return value.new_empty(num_dst, value.size(1)), state


@operator(_like_dot_attention)
def dot_attention(
    indptr: Tensor,
    indices: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    scale: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor]:
    """Attend with score scale <query[r], key[c]> and value value[c], by head.

    Args:
        indptr: int64 (R + 1,).
        indices: int32 (nnz,).
        query: (R, H F).
        key: (K, H F).
        value: (K, H F).
        heads: H.
        scale: Of the inner products.
        *drops: `Drops`.

    Returns:
        out (R, H F) like `value`; state (R, 3 lanes), of the accumulation dtype.
    """
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    queries = by_head(query, heads).index_select(0, entries.rows)
    score = (queries * by_head(key, heads).index_select(0, indices)).sum(2) * scale
    alpha, largest, inverse = row_softmax(indptr, score)
    out = attend(entries, alpha, by_head(value, heads)).to(value.dtype)
    return out, pack_state(largest, inverse, torch.zeros_like(largest))


def _like_dot_attention_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_: Tensor | float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


@operator(_like_dot_attention_grad)
def dot_attention_grad(
    indptr: Tensor,
    indices: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    out: Tensor,
    grad: Tensor,
    heads: int,
    scale: float,
    *drops: *DropArguments,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of `dot_attention` for `query`, `key` and `value`.

    `state` and `out` are what the forward returned, `grad` (R, H F) is the gradient of `out`,
    `t_indptr` and `t_indices` are the transposed structure; the others are those of the forward.
    """
    entries = entries_of(indptr, indices, heads, Drops(*drops))
    queries = by_head(query, heads).index_select(0, entries.rows)
    keys = by_head(key, heads).index_select(0, indices)
    alpha, _, _ = row_softmax(indptr, (queries * keys).sum(2) * scale)
    change, grad_value = score_gradient(entries, alpha, by_head(grad, heads), by_head(value, heads))
    change = change.unsqueeze(2) * scale
    grad_query = entries.to_rows(change * keys)
    grad_key = entries.to_columns(change * queries, key.size(0))
    return tuple(g.flatten(1).to(value.dtype) for g in (grad_query, grad_key, grad_value))  # type: ignore[return-value]
