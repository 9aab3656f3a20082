"""How many bytes halo rows take, before any is sent."""

from collections.abc import Sequence

from gnn_dist.errors import ConfigError
from gnn_dist.halo.policy import Delayed, HaloPolicy, Local
from gnn_dist.shard.plan import HaloPlan

__all__ = ["step_bytes"]


def step_bytes(
    layers: Sequence[tuple[HaloPlan, int]],
    policy: HaloPolicy,
    *,
    itemsize: int = 4,
    mirrored: bool = False,
) -> int:
    """Return the bytes of halo rows and of their gradients that a rank sends in a training step.

    Args:
        layers: For each layer its plan and the elements of the rows that it exchanges, both ways.
            A layer with constant input exchanges none after the first step and is left out.
        policy: Of training.
        itemsize: Bytes of an element, a floating-point number.
        mirrored: Whether gradients travel like values: sums and means on a symmetric graph.

    Returns:
        What `Meter.halo_bytes` will count once warm-up is over; for `sampled` its expectation, for
        `delayed` its mean over a rotation of the bins, for `adaptive` at most. What `remat` fetches
        again, such as rows of a maximum, is not in it.

    Raises:
        ConfigError: Rows are relayed, which depends on what is on which machine.
    """
    if policy.path is not None:
        raise ConfigError(f"the bytes of {policy} follow from machines, not from the plan alone")
    if isinstance(policy.schedule, Local):
        return 0
    mirrored = mirrored and (policy.select is None or policy.holds)
    total = 0
    for plan, width in layers:
        num_there = plan.num_boundary
        num_back = plan.num_boundary if mirrored else plan.num_halo
        if plan.clones:  # up and down, both times
            num_there = num_back = plan.num_boundary + plan.num_halo
        total += num_there * policy.row_bytes(width, itemsize)
        total += num_back * policy.row_bytes(width, itemsize, gradients=True)
    p = 1.0 if policy.select is None else policy.select.p
    bins = policy.schedule.bins if isinstance(policy.schedule, Delayed) else 1
    return round(p * total / bins)
