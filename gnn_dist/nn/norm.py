"""Batch normalisation with the statistics of all ranks' nodes."""

import torch
from torch import Tensor, nn

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.collectives import all_reduce_sum

__all__ = ["BatchNorm", "global_batch_norm"]


class BatchNorm(nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` over the nodes of all ranks; same parameters and `state_dict`.

    Args:
        num_features: Width of the rows.
        transport: The ranks; None for the nodes at hand only.
    """

    def __init__(self, num_features: int, transport: Transport | None = None) -> None:
        super().__init__(num_features)
        self.transport = transport

    def forward(self, x: Tensor, counted: int | Tensor | None = None) -> Tensor:
        """Collective. Normalise rows.

        Args:
            x: (n, num_features), owned rows, or more.
            counted: How many of them, the first ones, the statistics are of; or (n,), how much each
                row counts, where several ranks have the same one; None for all.
        """
        if not self.training or self.transport is None:
            return super().forward(x)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return global_batch_norm(
            x,
            (self.running_mean, self.running_var),
            (self.weight, self.bias),
            momentum=self._weight_of_new(),
            eps=self.eps,
            transport=self.transport,
            counted=counted,
        )

    def _weight_of_new(self) -> float:
        """Return the momentum; None means the mean over all batches so far."""
        if self.momentum is not None:
            return self.momentum
        return 1.0 / max(1.0, float(self.num_batches_tracked or 0))


def global_batch_norm(
    x: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    affine: tuple[Tensor | None, Tensor | None],
    *,
    momentum: float,
    eps: float,
    transport: Transport,
    counted: int | Tensor | None = None,
) -> Tensor:
    """Collective. Normalise rows by mean and variance over the owned rows of all ranks.

    Args:
        x: (n, F), rows of this rank, owned ones first; n may be 0.
        running: Running mean and variance (F,), updated in place; None where not tracked.
        affine: Weight and bias (F,), or None.
        momentum: Weight of the new statistics.
        eps: Added to the variance.
        transport: The ranks.
        counted: As in `BatchNorm.forward`.

    Returns:
        (n, F), differentiable; the backward is collective too.
    """
    dtype = x.dtype
    x = x.to(torch.promote_types(dtype, torch.float32))
    share = counted.to(x.dtype).unsqueeze(1) if isinstance(counted, Tensor) else None
    owned = slice(counted if isinstance(counted, int) else x.size(0))
    here = x[owned].size(0) if share is None else float(share.sum(dtype=torch.float64))
    count = torch.tensor([float(here)], dtype=torch.float64, device=x.device)
    transport.all_reduce(count).wait()
    total = max(count.item(), 1.0)

    def mean_of(values: Tensor) -> Tensor:
        """Collective. Return the mean over the rows of all ranks, each counted once."""
        rows = values[owned] if share is None else values * share
        return all_reduce_sum(rows.sum(0), transport) / total

    mean = mean_of(x)
    centred = x - mean
    # Two passes: the variance of centred values loses no digits to a large mean.
    variance = mean_of(centred.square())
    _update(running, mean.detach(), variance.detach() * (total / max(total - 1.0, 1.0)), momentum)
    out = centred * (variance + eps).rsqrt()
    weight, bias = affine
    if weight is not None:
        out = out * weight
    return (out if bias is None else out + bias).to(dtype)


def _update(
    running: tuple[Tensor | None, Tensor | None], mean: Tensor, variance: Tensor, momentum: float
) -> None:
    for old, new in zip(running, (mean, variance), strict=True):
        if old is not None:
            old.mul_(1.0 - momentum).add_(new.to(old.dtype), alpha=momentum)
