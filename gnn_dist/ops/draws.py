"""Counter-based random numbers: the same for any number of ranks, threads and parts.

A draw depends on (seed, step, site) and the original id of the node, or on the original ids of an
edge's ends and which copy of the edge it is; never on who draws it or in what order.

Source: the finalizer of SplitMix64, "Fast Splittable Pseudorandom Number Generators" (Steele, Lea,
Flood, 2014): a bijective mix of 64 bits, applied to a key plus a multiple of the golden ratio.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["DrawKey", "copy_numbers", "dropout_by_id", "edge_ids", "keep_mask", "uniform_by_id"]

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MASK64 = 2**64 - 1
ROWS_AT_ONCE = 1 << 16  # words mixed together: they stay in cache


@dataclass(frozen=True)
class DrawKey:
    """What a draw depends on beside the id.

    Attributes:
        seed: The run's seed.
        step: Optimiser steps so far (the epoch in full-batch training).
        site: Which place of the model draws (layer or hop).
    """

    seed: int
    step: int
    site: int

    @property
    def value(self) -> int:
        """64 bits as a signed integer."""
        mixed = 0
        for part in (self.seed, self.step, self.site):
            mixed = _mix_int((mixed + GOLDEN + part) & MASK64)
        return _signed(mixed)


def keep_mask(key: DrawKey, ids: Tensor, num_cols: int, p: float) -> Tensor:
    """Draw which elements are kept.

    Args:
        key: Seed, step and site.
        ids: int64 (n,), original ids (or `edge_ids`).
        num_cols: Draws per id.
        p: Probability that an element is dropped, resolved to 2^-32.

    Returns:
        bool (n, num_cols), on the device of `ids`.
    """
    row_key = _mix(_mix(ids + _signed(GOLDEN)) ^ key.value)
    words = (num_cols + 1) // 2
    column = (torch.arange(1, words + 1, device=ids.device)) * _signed(GOLDEN)
    # Each word gives two columns: its low and its high half, compared as unsigned numbers.
    threshold = round(p * 2**32)
    keep = torch.empty(ids.numel(), 2 * words, dtype=torch.bool, device=ids.device)
    step = max(1, ROWS_AT_ONCE // max(1, words))
    for start in range(0, ids.numel(), step):
        word = _mix(row_key[start : start + step, None] + column)
        torch.ge(word & 0xFFFFFFFF, threshold, out=keep[start : start + step, 0::2])
        torch.ge((word >> 32) & 0xFFFFFFFF, threshold, out=keep[start : start + step, 1::2])
    return keep[:, :num_cols]


def uniform_by_id(key: DrawKey, ids: Tensor) -> Tensor:
    """Draw float64 (n,) uniform numbers in [0, 1), one for each id of `ids` (n,)."""
    word = _mix(_mix(ids + _signed(GOLDEN)) ^ key.value)
    return ((word >> 11) & (2**53 - 1)).double() / 2**53


def edge_ids(src_id: Tensor, dst_id: Tensor, copy_number: Tensor) -> Tensor:
    """Return int64 keys of edges, from original ids (e,) and copy numbers (e,)."""
    return _mix(_mix(src_id + _signed(GOLDEN)) + dst_id) + copy_number


def copy_numbers(src: Tensor, dst: Tensor, num_src: int) -> Tensor:
    """Return int64 (e,): k for the k-th copy (from 0) of an edge, in any order of edges."""
    key = dst * num_src + src
    ordered, order = key.sort(stable=True)
    index = torch.arange(key.numel(), device=key.device)
    start = torch.searchsorted(ordered, ordered)
    return torch.empty_like(index).scatter_(0, order, index - start)


def dropout_by_id(x: Tensor, ids: Tensor, p: float, key: DrawKey) -> Tensor:
    """Apply dropout whose mask depends on ids, not on position.

    Args:
        x: (n, ...), the rows.
        ids: int64 (n,), original id of each row.
        p: Probability of dropping an element; kept ones are scaled by 1 / (1 - p).
        key: Seed, step and site.

    Returns:
        A tensor like `x`, differentiable.
    """
    if p == 0.0 or x.numel() == 0:
        return x
    if p == 1.0:
        return x * 0.0
    keep = keep_mask(key, ids, x[0].numel(), p)
    return _Mask.apply(x, keep.view_as(x), 1.0 / (1.0 - p))  # type: ignore[no-any-return, no-untyped-call]


class _Mask(torch.autograd.Function):
    """x * keep * scale, remembering one byte an element."""

    @staticmethod
    def forward(ctx, x, keep, scale):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x * scale).mul_(keep)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        (keep,) = ctx.saved_tensors
        return (grad * ctx.scale).mul_(keep), None, None


def _mix(z: Tensor) -> Tensor:
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _signed(MULTIPLIERS[0])
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _signed(MULTIPLIERS[1])
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * MULTIPLIERS[0]) & MASK64
    z = ((z ^ (z >> 27)) * MULTIPLIERS[1]) & MASK64
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
