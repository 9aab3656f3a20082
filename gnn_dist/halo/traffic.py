"""How many bytes halo rows take, before any is sent."""

from collections.abc import Sequence

from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.shard.plan import HaloPlan

__all__ = ["step_bytes"]


def step_bytes(
    plan: HaloPlan,
    policy: HaloPolicy,
    widths: Sequence[int],
    *,
    itemsize: int = 4,
    mirrored: bool = False,
) -> int:
    """Return the bytes of halo rows and of their gradients that a rank sends in a training step.

    Args:
        plan: Of the rank's shard.
        policy: Of training.
        widths: Elements of the rows that each layer exchanges, both ways; 0 where a layer
            exchanges none, as one whose input is constant does not after the first step.
        itemsize: Bytes of an element, a floating-point number.
        mirrored: Whether gradients travel like values: sums and means on a symmetric graph.

    Returns:
        What `Meter.halo_bytes` will count; for `sampled` its expectation, for `adaptive` at most.
    """
    share = 1.0 if policy.select is None else policy.select.p
    mirrored = mirrored and policy.select is None
    num_back = plan.num_boundary if mirrored else plan.num_halo
    there = sum(policy.row_bytes(width, itemsize) for width in widths)
    back = sum(policy.row_bytes(width, itemsize, gradients=True) for width in widths)
    return round(share * (plan.num_boundary * there + num_back * back))
