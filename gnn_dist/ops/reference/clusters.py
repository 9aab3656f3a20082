"""Clusters of nodes that share many nets, step by step as in `csrc`."""

import torch
from torch import Tensor

from gnn_dist.ops.native import operator
from gnn_dist.ops.reference.part_state import node_draws, rows_of

__all__ = ["cluster_nodes"]


def _fake_cluster(*arguments: Tensor) -> Tensor:
    return torch.empty_like(arguments[7])


@operator(_fake_cluster)
def cluster_nodes(
    net_ptr: Tensor,
    nets: Tensor,
    pin_ptr: Tensor,
    pins: Tensor,
    net_weight: Tensor,
    node_weight: Tensor,
    most: Tensor,
    assignment: Tensor,
    most_pins: int,
    key: int,
) -> Tensor:
    """Put nodes of one part that share many nets into clusters.

    Args:
        net_ptr: As of `local_search`, like `nets pin_ptr pins net_weight`.
        nets: See there.
        pin_ptr: See there.
        pins: See there.
        net_weight: See there.
        node_weight: int64 (N, K), not negative, K > 0. Light ones in the first column go first.
        most: int64 (K,), what a cluster of several nodes may weigh.
        assignment: int32 (N,): no cluster has nodes of two parts. Any labels.
        most_pins: Larger nets are left out.
        key: What order nodes are visited in.

    Returns:
        int32 (N,), the number of each node's cluster, counted from 0.

    Raises:
        IndexError: An offset, a net or a pin is out of range.
        ValueError: Arguments do not fit each other.
    """
    part = assignment.tolist()
    nets_of, pins_of = rows_of(net_ptr, nets), rows_of(pin_ptr, pins)
    weight, limit = node_weight.tolist(), most.tolist()
    leader, joined = list(range(len(part))), set[int]()
    for _, v in sorted((draw, v) for v, draw in enumerate(node_draws(key, len(part)))):
        if v in joined:
            continue
        rating: dict[int, float] = {}
        for net in nets_of[v]:
            size = len(pins_of[net])
            if 2 <= size <= most_pins:
                share = int(net_weight[net]) / (size - 1)
                for pin in pins_of[net]:
                    if part[pin] == part[v] and pin != v:
                        rating[leader[pin]] = rating.get(leader[pin], 0.0) + share
        to = max(
            (u for u in rating if u != v and rating[u] > 0 and _joint(weight, v, u, limit)),
            key=lambda u: (rating[u] / (1 + weight[u][0]), -u),
            default=None,
        )
        if to is not None:
            leader[v] = to
            joined |= {v, to}
            weight[to] = [a + b for a, b in zip(weight[to], weight[v], strict=True)]
    number = {v: i for i, v in enumerate(v for v, u in enumerate(leader) if u == v)}
    return assignment.new_tensor([number[u] for u in leader])


def _joint(weight: list[list[int]], v: int, u: int, most: list[int]) -> bool:
    return all(
        a == 0 or a + b <= limit for a, b, limit in zip(weight[v], weight[u], most, strict=True)
    )
