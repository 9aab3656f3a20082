"""The inner loops of an external bucket sort of edges."""

from itertools import pairwise

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.words import mix

__all__ = ["count_packed", "pack_edges", "sort_packed"]

SOURCE_KEY, DESTINATION_KEY = 0x243F6A8885A308D3, 0x13198A2E03707344
MASK64 = 2**64 - 1


def _source_bits(num_nodes: int) -> int:
    return max(1, (num_nodes - 1).bit_length())


def _fake_pack(
    src: Tensor, dst: Tensor, num_nodes: int, shift: int
) -> tuple[Tensor, Tensor, Tensor]:
    del dst
    buckets = ((num_nodes - 1) >> shift) + 1 if num_nodes else 0
    long = src.new_empty(len(src), dtype=torch.int64)
    return long, long.new_empty(buckets + 1), long.new_empty(3)


@operator(_fake_pack)
def pack_edges(
    src: Tensor, dst: Tensor, num_nodes: int, shift: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Group edges by ranges of 2^shift destinations, in order inside a range.

    Args:
        src: int32 or int64 (k,).
        dst: Like `src`.
        num_nodes: N, at most 2^36.
        shift: Logarithm of a range's length to base 2.

    Returns:
        int64 (k,), each edge as (destination in its range, source) in the high and low bits of 64;
        int64 (B + 1,), offsets of the ranges; int64 (3,): self-loops, and the low and high word of
        the sum of a(u) b(v) - a(v) b(u) over the edges u -> v, modulo 2^128.
    """
    src, dst = src.long(), dst.long()
    bucket = dst >> shift
    order = torch.argsort(bucket, stable=True)
    packed = (dst & ((1 << shift) - 1)) << _source_bits(num_nodes) | src
    buckets = ((num_nodes - 1) >> shift) + 1 if num_nodes else 0
    counts = torch.bincount(bucket, minlength=buckets)
    words = [mix(ids + key) for ids in (src, dst) for key in (SOURCE_KEY, DESTINATION_KEY)]
    skew = 0
    for a_src, b_src, a_dst, b_dst in zip(*(w.tolist() for w in words), strict=True):
        skew += (a_src & MASK64) * (b_dst & MASK64) - (a_dst & MASK64) * (b_src & MASK64)
    halves = [_signed(skew & MASK64), _signed((skew >> 64) & MASK64)]
    found = src.new_tensor([int((src == dst).sum()), *halves])
    return packed[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]), found


def _fake_count(
    packed: Tensor, table: Tensor, num_nodes: int, shift: int, first_row: int, last_row: int
) -> Tensor:
    del packed, num_nodes, shift
    return table.new_empty(last_row - first_row)


@operator(_fake_count)
def count_packed(
    packed: Tensor, table: Tensor, num_nodes: int, shift: int, first_row: int, last_row: int
) -> Tensor:
    """Count the edges of the rows [first_row, last_row); arguments as for `sort_packed`."""
    _, dst = _unpack(packed, table, num_nodes, shift, first_row, last_row)
    return torch.bincount(dst - first_row, minlength=last_row - first_row)


def _fake_sort(
    packed: Tensor,
    table: Tensor,
    num_nodes: int,
    shift: int,
    first_row: int,
    last_row: int,
    unique: bool,
) -> tuple[Tensor, Tensor]:
    del shift, unique
    size = torch.library.get_ctx().new_dynamic_size()
    dtype = torch.int32 if num_nodes < 2**31 else torch.int64
    return table.new_empty(last_row - first_row + 1), packed.new_empty(size, dtype=dtype)


@operator(_fake_sort)
def sort_packed(
    packed: Tensor,
    table: Tensor,
    num_nodes: int,
    shift: int,
    first_row: int,
    last_row: int,
    unique: bool,
) -> tuple[Tensor, Tensor]:
    """Sort the edges of the rows [first_row, last_row) by destination and source.

    Args:
        packed: int64 (E,), chunks of packed edges.
        table: int64 (chunks, B + 1), the offsets of each chunk's ranges in `packed`.
        num_nodes: As for `pack_edges`.
        shift: As for `pack_edges`.
        first_row: First row wanted.
        last_row: One past the last row wanted.
        unique: Keep one copy of repeated edges.

    Returns:
        int64 (rows + 1,) offsets, and sources, int32 while N < 2^31, else int64.
    """
    src, dst = _unpack(packed, table, num_nodes, shift, first_row, last_row)
    order = torch.argsort(src, stable=True)
    order = order[torch.argsort(dst[order], stable=True)]
    src, dst = src[order], dst[order]
    if unique and len(src):
        first = torch.ones(len(src), dtype=torch.bool)
        first[1:] = (src.diff() != 0) | (dst.diff() != 0)
        src, dst = src[first], dst[first]
    counts = torch.bincount(dst - first_row, minlength=last_row - first_row)
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return indptr, src.int() if num_nodes < 2**31 else src


def _unpack(
    packed: Tensor, table: Tensor, num_nodes: int, shift: int, first_row: int, last_row: int
) -> tuple[Tensor, Tensor]:
    """Return (src, dst) of the edges whose destination is in range, in the file's order."""
    bits = _source_bits(num_nodes)
    dst = torch.full_like(packed, -1)
    for ptr in table.tolist():
        for bucket, (start, stop) in enumerate(pairwise(ptr)):
            local = (packed[start:stop] >> bits) & ((1 << shift) - 1)
            dst[start:stop] = local + (bucket << shift)
    inside = (dst >= first_row) & (dst < last_row)
    return packed[inside] & ((1 << bits) - 1), dst[inside]


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
