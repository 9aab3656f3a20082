"""What exchanges did, by layer and direction, over all ranks: the `halo` list of a metrics row."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_dist.halo.courier import DIRECTIONS
from gnn_dist.profile.meter import HaloCount, Lane

__all__ = ["halo_rows", "halo_table"]


def halo_table(
    counts: Mapping[Lane, HaloCount], layers: Sequence[int]
) -> tuple[list[Lane], Tensor]:
    """Return this rank's counts as numbers in an order that all ranks share.

    Args:
        counts: By layer and direction.
        layers: Numbers of the model's.

    Returns:
        All layers and directions, L, and float64 (L, 5): a row of `HaloCount` each.
    """
    lanes = [(layer, direction) for layer in layers for direction in DIRECTIONS]
    nothing = HaloCount()
    found = [counts.get(lane, nothing) for lane in lanes]
    rows = [[c.exchanges, c.bytes, c.messages, c.wait_s, c.late_s] for c in found]
    return lanes, torch.tensor(rows, dtype=torch.float64).view(len(lanes), 5)


def halo_rows(lanes: Sequence[Lane], by_rank: Tensor, *, with_late: bool) -> list[dict[str, Any]]:
    """Return what is written of each layer and direction that had an exchange.

    Args:
        lanes: Layers and directions, L.
        by_rank: (world_size, L, 5), every rank's `halo_table`.
        with_late: Whether time for late senders was told apart.

    Returns:
        Bytes and messages of all ranks, `wait_s` of the rank that waited longest, and `late_s`, its
        part for senders that had not come yet, or None.
    """
    rows = []
    for i, (layer, direction) in enumerate(lanes):
        exchanges, num_bytes, messages, *_ = by_rank[:, i].sum(0).tolist()
        if not exchanges:
            continue
        wait_s, late_s = by_rank[by_rank[:, i, 3].argmax(), i, 3:].tolist()
        rows.append(
            {
                "layer": layer,
                "direction": direction,
                "bytes": int(num_bytes),
                "messages": int(messages),
                "wait_s": wait_s,
                "late_s": late_s if with_late else None,
            }
        )
    return rows
