"""What the attention operators share: a score's softmax over each row's entries, a sum of values.

What the forward keeps of the softmax is `state`, for each destination rows of `lanes` numbers: the
largest score, one over the sum of exponentials, room for the backward, and for `gat` the
destination's share of the score. `lanes` is the number of heads rounded up.

Dropout of coefficients (`Drops`): an entry's draws, integers below 2^32, are those of its edge
(`gnn_dist.ops.draws`); a coefficient is dropped where its draw lies below `below`, else multiplied
by `scale`.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.ops.reference.edge_softmax import softmax_parts
from gnn_dist.ops.reference.spmm import row_index
from gnn_dist.ops.reference.words import GOLDEN, mix, row_keys, words

__all__ = [
    "DropArguments",
    "Drops",
    "Entries",
    "attend",
    "by_head",
    "entries_of",
    "pack_state",
    "pad_heads",
    "padded_heads",
    "row_softmax",
    "score_gradient",
    "slopes",
]


class Drops(NamedTuple):
    """Dropout of coefficients: the operators' last arguments, all or none of them given.

    Attributes:
        key: A draw key.
        below: Draws below are dropped; 0: no dropout.
        scale: Of kept coefficients.
        src_id: int64 (K,), original ids; for dropout.
        dst_id: int64 (R,).
    """

    key: int = 0
    below: int = 0
    scale: float = 1.0
    src_id: Tensor | None = None
    dst_id: Tensor | None = None


# What an operator's last parameters are given.
DropArguments = tuple[int, int, float, Tensor | None, Tensor | None]


def padded_heads(heads: int) -> int:
    """Return `lanes`: a power of two up to 16, then a multiple of 16."""
    return 1 << (heads - 1).bit_length() if heads <= 16 else -(-heads // 16) * 16


class Entries(NamedTuple):
    """Both ends of each entry, and the mask of each coefficient.

    Attributes:
        rows: int64 (nnz,).
        columns: int32 (nnz,).
        num_rows: R.
        keep: bool (nnz, H), coefficients that are not dropped; None: all.
        scale: Of those that are kept.
    """

    rows: Tensor
    columns: Tensor
    num_rows: int
    keep: Tensor | None
    scale: float

    def dropped(self, values: Tensor) -> Tensor:
        """Apply dropout to numbers (nnz, H)."""
        return values if self.keep is None else values * self.keep * self.scale

    def to_rows(self, values: Tensor) -> Tensor:
        """Sum values of entries by row."""
        out = values.new_zeros(self.num_rows, *values.shape[1:])
        return out.index_add_(0, self.rows, values)

    def to_columns(self, values: Tensor, num_cols: int) -> Tensor:
        """Sum values of entries by column."""
        out = values.new_zeros(num_cols, *values.shape[1:])
        return out.index_add_(0, self.columns, values)


def entries_of(indptr: Tensor, columns: Tensor, heads: int, drops: Drops) -> Entries:
    """Return both ends of each entry, and the masks of its coefficients."""
    rows = row_index(indptr, columns.numel())
    keep = None
    if drops.below > 0 and drops.src_id is not None and drops.dst_id is not None:
        ends = mix(drops.src_id[columns] + GOLDEN) + drops.dst_id[rows]
        keys = row_keys(drops.key, mix(ends) + _copy_number(rows, columns))
        drawn = words(keys, (heads + 1) // 2)
        halves = torch.stack([drawn & 0xFFFFFFFF, (drawn >> 32) & 0xFFFFFFFF], 2).flatten(1)
        keep = halves[:, :heads] >= drops.below
    return Entries(rows, columns, indptr.numel() - 1, keep, drops.scale)


def _copy_number(rows: Tensor, columns: Tensor) -> Tensor:
    index = torch.arange(rows.numel(), device=rows.device)
    is_copy = torch.zeros_like(index, dtype=torch.bool)
    is_copy[1:] = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
    first = torch.where(is_copy, 0, index)
    return index - torch.cummax(first, 0).values if rows.numel() else index


def by_head(x: Tensor, heads: int) -> Tensor:
    """Return rows (n, H F) as (n, H, F), of the accumulation dtype."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x.to(wide).reshape(x.size(0), heads, x.size(1) // heads)


def pad_heads(numbers: Tensor) -> Tensor:
    """Return numbers (n, H) as (n, lanes), with zeros."""
    return F.pad(numbers, (0, padded_heads(numbers.size(1)) - numbers.size(1)))


def pack_state(*fields: Tensor) -> Tensor:
    """Return numbers (n, H) each as (n, lanes times their count)."""
    return torch.stack([pad_heads(field) for field in fields], 1).flatten(1)


def row_softmax(indptr: Tensor, score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha (nnz, H), and by row the largest score and one over the sum, (R, H)."""
    alpha, largest, total = softmax_parts(indptr, score)
    empty = (indptr.diff() == 0)[:, None]
    return alpha, largest.masked_fill(empty, 0.0), total.reciprocal().masked_fill(empty, 0.0)


def attend(entries: Entries, alpha: Tensor, value: Tensor) -> Tensor:
    """Return (R, H F), the sum of values (K, H, F) with their coefficients (nnz, H)."""
    messages = entries.dropped(alpha).unsqueeze(2) * value.index_select(0, entries.columns)
    return entries.to_rows(messages).flatten(1)


def score_gradient(
    entries: Entries, alpha: Tensor, grad: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of scores (nnz, H) and, summed by column, of values."""
    arriving = grad.index_select(0, entries.rows)
    inner = (arriving * value.index_select(0, entries.columns)).sum(2)
    inner = entries.dropped(inner)
    by_row = entries.to_rows(alpha * inner).index_select(0, entries.rows)
    grad_value = entries.to_columns(entries.dropped(alpha).unsqueeze(2) * arriving, value.size(0))
    return alpha * (inner - by_row), grad_value


def slopes(z: Tensor, slope: float) -> Tensor:
    """Return the leaky ReLU's derivative."""
    return torch.where(z > 0, z.new_ones(()), z.new_full((), slope))
