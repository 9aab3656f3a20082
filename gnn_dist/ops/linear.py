"""Linear maps of many rows, whose outputs reuse memory."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.errors import ConfigError
from gnn_dist.ops.native import kernels

__all__ = [
    "computed",
    "linear",
    "linear_onto",
    "linear_pair",
    "product",
    "row_gradient_over",
    "weight_gradient",
]

PANEL_ROWS = 4096  # of a product that takes the place of its factor


class FirstUse(Protocol):
    """What else is done with the first of two products while the second is made."""

    def made(self, rows: Tensor) -> None:
        """Take the product (n, K)."""

    def gradient(self, grad: Tensor) -> Tensor:
        """Return the product's gradient (n, K), completed."""


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
    return _Linear.apply(computed(x), weight, bias)  # type: ignore[no-any-return, no-untyped-call]


def linear_pair(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None = None,
    *,
    use: FirstUse | None = None,
) -> tuple[Tensor, Tensor]:
    """Return x @ first.T and x @ second.T + bias, whose gradients for `x` are added up in place.

    Args:
        x: (n, F).
        first: (K, F).
        second: (L, F).
        bias: (L,), or None.
        use: Is told of the first product before the second is made, and asked for the first's
            gradient after the second's is used up.

    Returns:
        (n, K) and (n, L).
    """
    return _Pair.apply(computed(x), first, second, bias, use)  # type: ignore[no-any-return, no-untyped-call]


def linear_onto(out: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Add x @ weight.T to `out` in place, and return it; differentiable.

    Args:
        out: (n, K), not to be used again.
        x: (n, F).
        weight: (K, F).
    """
    return _Onto.apply(out, computed(x), weight)  # type: ignore[no-any-return, no-untyped-call]


def computed(x: Tensor) -> Tensor:
    """Return rows in the dtype that products are computed in: under autocast, autocast's.

    Raises:
        ConfigError: They are not floating-point numbers.
    """
    if not x.is_floating_point():
        raise ConfigError(f"rows must be floating-point numbers, got {x.dtype}: convert them")
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        return x.to(torch.get_autocast_dtype(device))
    return x


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return x (n, F) @ weight (K, F).T + bias, in memory of the pool or in `out` (n, K)."""
    if out is None:
        out = kernels.empty_rows(x, x.size(0), weight.size(0))
    turned = weight.to(x.dtype).t()
    with torch.autocast(x.device.type, enabled=False):
        if bias is None:
            return torch.mm(x, turned, out=out)
        return torch.addmm(bias.to(x.dtype), x, turned, out=out)


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return (K, F) like `weight`, from the gradient (n, K) of `product(x, weight)`."""
    return torch.mm(grad.t(), x).to(weight.dtype)


def row_gradient_over(grad: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient (n, F) of `product`'s rows in the memory of `grad`, where it fits there.

    Row after row it begins no later than the gradient that it is made from, which is read before.

    Args:
        grad: (n, K), contiguous, not to be used again.
        weight: (K, F).
    """
    num_rows, width = grad.size(0), weight.size(1)
    if width > grad.size(1):
        return _row_gradient(grad, weight)
    weight = weight.to(grad.dtype)
    out = grad.view(-1)[: num_rows * width].view(num_rows, width)
    panel = grad.new_empty(min(num_rows, PANEL_ROWS), width)
    for begin in range(0, num_rows, PANEL_ROWS):
        rows = grad[begin : begin + PANEL_ROWS]
        made = torch.mm(rows, weight, out=panel[: rows.size(0)])
        out[begin : begin + PANEL_ROWS].copy_(made)
    return out


def _row_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = kernels.empty_rows(grad, grad.size(0), weight.size(1))
    return torch.mm(grad, weight.to(grad.dtype), out=out)


def _bias_gradient(needed: bool, grad: Tensor, dtype: torch.dtype) -> Tensor | None:
    return grad.sum(0, dtype=dtype) if needed else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _row_gradient(grad, weight) if needs_x else None,
            weight_gradient(grad, x, weight) if needs_weight else None,
            _bias_gradient(needs_bias, grad, weight.dtype),
        )


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        second: Tensor,
        bias: Tensor | None,
        use: FirstUse | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, first, second)
        ctx.use = use
        rows = product(x, first)
        if use is not None:
            use.made(rows)
        return rows, product(x, second, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second = ctx.saved_tensors
        needs_x, needs_first, needs_second, needs_bias, _ = ctx.needs_input_grad
        grad_x = _row_gradient(grads[1], second) if needs_x else None
        grad_second = weight_gradient(grads[1], x, second) if needs_second else None
        grad_bias = _bias_gradient(needs_bias, grads[1], second.dtype)
        grad = grads[0] if ctx.use is None else ctx.use.gradient(grads[0])
        if grad_x is not None:
            grad_x.addmm_(grad, first.to(grad_x.dtype))
        grad_first = weight_gradient(grad, x, first) if needs_first else None
        return grad_x, grad_first, grad_second, grad_bias, None


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
            weight_gradient(grad, x, weight) if needs_weight else None,
        )
