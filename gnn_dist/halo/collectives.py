"""Reductions over ranks that gradients flow through, and the start of equal models."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.halo.node_rows import rows_of

__all__ = ["all_reduce_sum", "broadcast_state", "mean_over_ranks"]


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


def mean_over_ranks(rows: Tensor, world: World) -> Tensor:
    """Collective. Return the mean of the rows of all ranks, for a loss or a metric.

    Args:
        rows: (k, ...) of this rank, such as the loss of each of its training nodes; k may be 0.
        world: The ranks.

    Returns:
        A scalar, equal on all ranks. Its gradient is that of this rank's share alone, so that the
        sum of all ranks' gradients, as `backward` of a parallelized model makes it, is the mean's.
        Floating like `rows`, else float32.

    Example:
        >>> with World.single() as world:
        ...     float(mean_over_ranks(torch.tensor([1.0, 2.0, 6.0]), world))
        3.0
    """
    rows = rows if rows.is_floating_point() else rows.float()
    own = rows.sum()
    total = torch.stack([own.detach().double(), own.new_tensor(rows.numel()).double()])
    world.transport.all_reduce(total).wait()
    count = total[1].clamp(min=1.0)
    share = own / count.to(own)
    return share + ((total[0] / count).to(own) - share.detach())


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
