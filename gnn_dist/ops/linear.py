"""Linear maps of many rows, whose outputs reuse memory."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.ops.native import kernels

__all__ = ["linear", "linear_onto", "linear_pair"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias; differentiable.

    As `torch.nn.functional.linear`, but large outputs and gradients come from a pool of memory, and
    parameters of 32 bits are rounded to the dtype of `x` where that is shorter (under autocast, to
    autocast's).

    Args:
        x: (n, F).
        weight: (K, F).
        bias: (K,), or None.

    Returns:
        (n, K).
    """
    return _Linear.apply(_computed(x), weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def linear_pair(
    x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x @ first.T and x @ second.T + bias, whose gradients for `x` are added up in place.

    Args:
        x: (n, F).
        first: (K, F).
        second: (L, F).
        bias: (L,), or None.

    Returns:
        (n, K) and (n, L).
    """
    return _Pair.apply(_computed(x), first, second, bias)  # type: ignore[no-any-return, no-untyped-call]


def linear_onto(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add x @ weight.T to `out` in place, and return it; differentiable.

    Args:
        out: (n, K), not to be used again.
        x: (n, F).
        weight: (K, F).
    """
    return _Onto.apply(out, _computed(x), weight)  # type: ignore[no-any-return, no-untyped-call]


def _computed(x: Tensor) -> Tensor:
    """Return rows in the dtype that products are computed in."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(device))
    return x


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = kernels.empty_rows(x, x.size(0), weight.size(0))
    turned = weight.to(x.dtype).t()
    with torch.autocast(x.device.type, enabled=False):
        if bias is None:
            return torch.mm(x, turned, out=out)
        return torch.addmm(bias.to(x.dtype), x, turned, out=out)


def _row_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = kernels.empty_rows(grad, grad.size(0), weight.size(1))
    return torch.mm(grad, weight.to(grad.dtype), out=out)


def _weight_gradient(needed: bool, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    return torch.mm(grad.t(), x).to(weight.dtype) if needed else None


def _bias_gradient(needed: bool, grad: Tensor, dtype: torch.dtype) -> Tensor | None:
    return grad.sum(0, dtype=dtype) if needed else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _row_gradient(grad, weight) if needs_x else None,
            _weight_gradient(needs_weight, grad, x, weight),
            _bias_gradient(needs_bias, grad, weight.dtype),
        )


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, first, second)
        return _product(x, first, None), _product(x, second, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second = ctx.saved_tensors
        needs_x, needs_first, needs_second, needs_bias = ctx.needs_input_grad
        grad_x = None
        if needs_x:
            grad_x = _row_gradient(grads[0], first)
            grad_x.addmm_(grads[1], second.to(grad_x.dtype))
        return (
            grad_x,
            _weight_gradient(needs_first, grads[0], x, first),
            _weight_gradient(needs_second, grads[1], x, second),
            _bias_gradient(needs_bias, grads[1], second.dtype),
        )


class _Onto(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.mark_dirty(out)
        with torch.autocast(x.device.type, enabled=False):
            return out.addmm_(x, weight.to(x.dtype).t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_out, needs_x, needs_weight = ctx.needs_input_grad
        return (
            grad if needs_out else None,
            _row_gradient(grad, weight) if needs_x else None,
            _weight_gradient(needs_weight, grad, x, weight),
        )
