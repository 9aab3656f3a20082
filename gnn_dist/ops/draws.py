"""Counter-based random numbers: the same for any number of ranks, threads and parts.

A draw depends on (seed, step, site) and the original id of the node, or on the original ids of an
edge's ends and which copy of the edge it is; never on who draws it or in what order.

Source: the finalizer of SplitMix64, "Fast Splittable Pseudorandom Number Generators" (Steele, Lea,
Flood, 2014): a bijective mix of 64 bits, applied to a key plus a multiple of the golden ratio.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError
from gnn_dist.ops.native import kernels
from gnn_dist.ops.reference.words import GOLDEN, MULTIPLIERS
from gnn_dist.ops.rows import as_rows, readable_rows

__all__ = [
    "DrawKey",
    "bias_relu_dropout",
    "copy_numbers",
    "dropout_by_id",
    "edge_ids",
    "keep_mask",
    "uniform_by_id",
]

MASK64 = 2**64 - 1


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
            mixed = _mix_int(mixed + GOLDEN + part)
        return mixed - 2**64 if mixed >= 2**63 else mixed


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
    keep: Tensor = kernels.keep_mask(ids.contiguous(), key.value, num_cols, _threshold(p))
    return keep


def uniform_by_id(key: DrawKey, ids: Tensor) -> Tensor:
    """Draw float64 (n,) uniform numbers in [0, 1), one for each id of `ids` (n,)."""
    drawn: Tensor = kernels.uniform_by_id(ids.contiguous(), key.value)
    return drawn


def edge_ids(src_id: Tensor, dst_id: Tensor, copy_number: Tensor) -> Tensor:
    """Return int64 keys of edges, from original ids (e,) and copy numbers (e,)."""
    ids: Tensor = kernels.edge_ids(
        src_id.contiguous(), dst_id.contiguous(), copy_number.contiguous()
    )
    return ids


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
        A tensor like `x`, differentiable: (x * scale) * keep, so what is not finite stays visible.
    """
    return bias_relu_dropout(x, None, ids=ids, p=p, key=key, relu=False)


def bias_relu_dropout(
    x: Tensor,
    bias: Tensor | None,
    *,
    ids: Tensor,
    p: float,
    key: DrawKey,
    relu: bool = True,
    inplace: bool = False,
) -> Tensor:
    """Add a bias, apply ReLU and drop out by id, in one pass: (relu(x + bias) * scale) * keep.

    The mask is not stored. With a ReLU the backward reads it off the result, which is above zero
    where an element was positive and kept; without one it is drawn again.

    Args:
        x: (n, ...), the rows, float32, float64, bfloat16 or float16; computed no narrower than in
            float32 and rounded once.
        bias: Of the shape of a row, or None.
        ids: int64 (n,), original id of each row.
        p: Probability of dropping an element, in [0, 1].
        key: Seed, step and site.
        relu: False leaves the ReLU away. As in PyTorch, a NaN passes through it.
        inplace: Write the result into `x`, which nobody else may need: fresh memory costs more
            than the work.

    Returns:
        A tensor like `x`, differentiable in `x` and `bias`. The gradient of `bias` is added up in
        fixed blocks: it does not depend on the number of threads.
    """
    if p == 0.0 and bias is None and not relu:
        return x
    threshold = _threshold(p)
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    drawn = _Drawn(ids.contiguous(), key.value, threshold, scale)
    out: Tensor = _BiasReluDropout.apply(x, bias, drawn, relu, inplace)  # type: ignore[no-untyped-call]
    return out


class _Drawn(NamedTuple):
    """What the operators need to know of a mask."""

    ids: Tensor
    key: int
    threshold: int
    scale: float


class _BiasReluDropout(torch.autograd.Function):
    """One pass forward; one backward, which adds up the gradient of the bias too."""

    @staticmethod
    def forward(ctx, x, bias, drawn, relu, inplace):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        wide = torch.promote_types(x.dtype, torch.float32)
        flat_bias = None if bias is None else bias.to(wide).reshape(-1)
        if inplace:
            ctx.mark_dirty(x)
            kernels.bias_relu_dropout_(as_rows(x), flat_bias, *drawn, relu)
            out = x
        else:
            out = kernels.bias_relu_dropout(readable_rows(x), flat_bias, *drawn, relu)
            out = out if x.dim() == 2 else out.view(x.shape)
        ctx.drawn, ctx.relu = drawn, relu
        ctx.bias_like = None if bias is None else (bias.shape, bias.dtype)
        ctx.save_for_backward(*([out] if relu else []))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        result = readable_rows(ctx.saved_tensors[0]) if ctx.relu else None
        want_bias = ctx.needs_input_grad[1]
        for_x, total = kernels.relu_dropout_grad(readable_rows(grad), result, *ctx.drawn, want_bias)
        for_bias = None
        if want_bias:
            shape, dtype = ctx.bias_like
            for_bias = total.view(shape).to(dtype)
        return for_x.view(grad.shape), for_bias, None, None, None


def _threshold(p: float) -> int:
    if not 0.0 <= p <= 1.0:
        raise ConfigError(f"the probability to drop must lie in [0, 1], got {p}")
    return round(p * 2**32)


def _mix_int(z: int) -> int:
    z &= MASK64
    z = ((z ^ (z >> 30)) * MULTIPLIERS[0]) & MASK64
    z = ((z ^ (z >> 27)) * MULTIPLIERS[1]) & MASK64
    return z ^ (z >> 31)
