"""From rows of a graph to rows of parts: halo and local ids."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator

__all__ = ["localize", "mark_halo", "marked_ids", "rank_marks"]


def _nothing(
    marks: Tensor,
    indptr: Tensor,
    indices: Tensor,
    part: Tensor,
    global_id: Tensor,
    node_ptr: Tensor,
    first_part: int,
) -> None:
    del marks, indptr, indices, part, global_id, node_ptr, first_part


@operator(_nothing)
def mark_halo(
    marks: Tensor,
    indptr: Tensor,
    indices: Tensor,
    part: Tensor,
    global_id: Tensor,
    node_ptr: Tensor,
    first_part: int,
) -> None:
    """Set the bits of sources that rows of a group of parts read from other parts.

    Args:
        marks: int64 (G, (N + 63) // 64), one bit per node and part, by global id; changed.
        indptr: int64 (R + 1,), offsets of consecutive rows, from any start.
        indices: int32 or int64, the sources of these rows.
        part: int32 (R,), the part of each row.
        global_id: int64 (N,), by original id.
        node_ptr: int64 (P + 1,).
        first_part: The group holds the parts [first_part, first_part + G).
    """
    row = torch.repeat_interleave(torch.arange(len(part)), indptr.diff())
    reader, source = part[row].long(), global_id[indices.long()]
    remote = (source < node_ptr[reader]) | (source >= node_ptr[reader + 1])
    grouped = (reader >= first_part) & (reader < first_part + len(marks))
    for p, u in zip(reader[remote & grouped].tolist(), source[remote & grouped].tolist()):  # noqa: B905
        marks[p - first_part, u // 64] |= _bit(u)


@operator(lambda marks: marks.new_empty(marks.size(0), marks.size(1) + 1))
def rank_marks(marks: Tensor) -> Tensor:
    """Return int64 (G, W + 1), how many bits are set before each of the words (G, W)."""
    counts = _bits(marks).view(*marks.shape, 64).sum(-1)
    return torch.cat([counts.new_zeros(len(marks), 1), counts.cumsum(1)], 1)


def _fake_ids(marks: Tensor) -> Tensor:
    return marks.new_empty(torch.library.get_ctx().new_dynamic_size())


@operator(_fake_ids)
def marked_ids(marks: Tensor) -> Tensor:
    """Return the int64 positions of the bits that are set in the words (W,), ascending."""
    return _bits(marks).nonzero().squeeze(1)


def _fake_localize(
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    part: Tensor,
    global_id: Tensor,
    node_ptr: Tensor,
    first_part: int,
    marks: Tensor,
    ranks: Tensor,
) -> tuple[Tensor, Tensor]:
    del indptr, indices, rows, part, global_id, first_part, ranks
    size = torch.library.get_ctx().new_dynamic_size()
    return node_ptr.new_empty(size, dtype=torch.int32), node_ptr.new_empty(marks.size(0))


@operator(_fake_localize)
def localize(
    indptr: Tensor,
    indices: Tensor,
    rows: Tensor,
    part: Tensor,
    global_id: Tensor,
    node_ptr: Tensor,
    first_part: int,
    marks: Tensor,
    ranks: Tensor,
) -> tuple[Tensor, Tensor]:
    """Number the sources of some rows by local id: owned first, then halo by ascending global id.

    Args:
        indptr: As for `mark_halo`.
        indices: As for `mark_halo`.
        rows: int64 (k,), rows of this block, of the group's parts.
        part: As for `mark_halo`.
        global_id: As for `mark_halo`.
        node_ptr: As for `mark_halo`.
        first_part: As for `mark_halo`.
        marks: The marks of all rows.
        ranks: `rank_marks(marks)`.

    Returns:
        int32, one row after the other, and int64 (G,), the remote sources among them by part.
    """
    del ranks
    local = [indices.new_zeros(0, dtype=torch.int32)]
    num_cut = node_ptr.new_zeros(len(marks))
    for row in rows.tolist():
        p = int(part[row])
        start, stop = node_ptr[p : p + 2].tolist()
        begin, end = (indptr[row : row + 2] - indptr[0]).tolist()
        source = global_id[indices[begin:end].long()]
        halo = marked_ids(marks[p - first_part])
        remote = (source < start) | (source >= stop)
        number = torch.where(
            remote, stop - start + torch.searchsorted(halo, source), source - start
        )
        local.append(number.int())
        num_cut[p - first_part] += remote.sum()
    return torch.cat(local), num_cut


def _bits(words: Tensor) -> Tensor:
    """Return the bits of words (..., W), lowest first, int64 (..., 64 W)."""
    return ((words[..., None] >> torch.arange(64)) & 1).flatten(-2)


def _bit(position: int) -> int:
    bit = 1 << position % 64
    return bit - 2**64 if bit >= 2**63 else bit
