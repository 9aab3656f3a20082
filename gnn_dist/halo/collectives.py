"""Reductions over ranks that gradients flow through, and the start of equal models."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.node_rows import rows_of

__all__ = ["all_reduce_sum", "broadcast_state"]


def broadcast_state(model: nn.Module, transport: Transport) -> None:
    """Collective. Give rank 0's parameters and buffers to all ranks; rows of nodes stay."""
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if rows_of(tensor) is not None:
                continue
            values = tensor.data.contiguous()
            transport.broadcast(values)
            tensor.data.copy_(values)


def all_reduce_sum(x: Tensor, transport: Transport) -> Tensor:
    """Collective. Return the sum of `x` over all ranks, differentiably.

    Every rank's loss may depend on the sum, so the gradient is the sum of all ranks' gradients: the
    backward is the same reduction, and a collective too.
    """
    return _AllReduceSum.apply(x, transport)  # type: ignore[no-any-return, no-untyped-call]


class _AllReduceSum(torch.autograd.Function):
    """The sum over ranks is its own adjoint."""

    @staticmethod
    def forward(ctx, x, transport):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        ctx.transport = transport
        out = x.clone()
        transport.all_reduce(out).wait()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN205
        out = grad.clone(memory_format=torch.contiguous_format)
        ctx.transport.all_reduce(out).wait()
        return out, None
