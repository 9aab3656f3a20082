"""Rows that leave before the sum over them begins, so that more is computed while they travel.

    layer             rows = x W' -> post | x R' + b | owned sources | wait | halo sources
    its backward      post gradients | owned sources | gradients of x R' + b | wait | halo sources |
                      gradients of x W'

What a layer does for its rows alone, it does before they are posted; the rest comes after. In the
backward it is the other way round: the sum posts, and whoever made the rows waits, once all that
does not depend on what arrives is done.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gnn_dist.halo.exchange import LayerExchange, Pending

__all__ = ["Ahead", "depart"]


class Ahead:
    """The rows of one aggregation, under way before it begins; used once.

    Args:
        exchange: The block's.
    """

    def __init__(self, exchange: LayerExchange) -> None:
        self._exchange = exchange
        self._pending: Pending | None = None
        self._finish: Callable[[Tensor], Tensor] | None = None

    def made(self, rows: Tensor) -> None:
        """Collective. Post the rows (n, F) that will be aggregated."""
        self._pending = self._exchange.forward.start(rows)

    def pending(self) -> Pending:
        """Return what was posted."""
        if self._pending is None:
            raise RuntimeError("rows are aggregated that were to leave ahead, but have not left")
        pending, self._pending = self._pending, None
        return pending

    def leave(self, finish: Callable[[Tensor], Tensor]) -> None:
        """Let `gradient` finish what the backward of the sum has begun."""
        self._finish = finish

    def gradient(self, grad: Tensor) -> Tensor:
        """Collective. Return the rows' gradient (n, F), complete, in its own memory."""
        finish, self._finish = self._finish, None
        return grad if finish is None else finish(grad)


def depart(rows: Tensor, ahead: Ahead | None) -> Tensor:
    """Collective. Post rows (n, F) and return them, differentiably.

    Their gradient is waited for after those of all that is computed between this call and the
    aggregation: autograd goes backward in that order.
    """
    return rows if ahead is None else _Depart.apply(rows, ahead)  # type: ignore[no-untyped-call]


class _Depart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ahead: Ahead) -> Tensor:
        ctx.ahead = ahead
        ahead.made(rows)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.ahead.gradient(grad), None
