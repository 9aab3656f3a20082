"""What is written of an epoch: the reports of all ranks as one row of `metrics.jsonl`."""

from typing import Any, NamedTuple

import torch

from gnn_dist.comm.world import World
from gnn_dist.profile.meter import peak_rss_bytes
from gnn_dist.train.halo_report import halo_rows, halo_table
from gnn_dist.train.steps import StepReport, Steps

__all__ = ["Agreed", "over_ranks"]

TIMES = ("epoch_s", "compute_s", "halo_wait_s", "batch_wait_s", "grad_sync_s")
SUMS = ("halo_bytes", "halo_messages")


class Agreed(NamedTuple):
    """What all ranks do alike.

    Attributes:
        overdue: Whether a checkpoint is, by rank 0's clock.
        stop: Whether some rank wants the run to end.
    """

    overdue: bool
    stop: bool


def over_ranks(
    report: StepReport, steps: Steps, world: World, wishes: Agreed
) -> tuple[dict[str, Any], Agreed]:
    """Collective. Return times and memory of the slowest rank, bytes and messages of all.

    Args:
        report: This rank's.
        steps: What made it.
        world: The ranks.
        wishes: What this rank would do.
    """
    mine = [*(float(getattr(report, name)) for name in (*TIMES, *SUMS)), float(peak_rss_bytes())]
    mine += [report.staleness, float(wishes.overdue), float(wishes.stop)]
    lanes, counts = halo_table(report.halo, steps.layers)
    table = torch.zeros(world.world_size, len(mine) + counts.numel(), dtype=torch.float64)
    table[world.rank] = torch.cat([torch.tensor(mine, dtype=torch.float64), counts.view(-1)])
    table = table.to(world.transport.device)
    world.transport.all_reduce(table).wait()
    table = table.cpu()
    row: dict[str, Any] = dict(zip(TIMES, table.amax(0).tolist(), strict=False))
    total = table.sum(0).tolist()
    row.update({name: int(total[len(TIMES) + i]) for i, name in enumerate(SUMS)})
    *_, peak, staleness, late, stop = table[:, : len(mine)].unbind(1)
    row["peak_rss_bytes"] = int(peak.max())
    if steps.holds_rows:
        known = [value for value in staleness.tolist() if value == value]
        row["staleness"] = max(known, default=float("nan"))
    by_rank = table[:, len(mine) :].view(world.world_size, *counts.shape)
    row["halo"] = halo_rows(lanes, by_rank, with_late=steps.meter.separates_skew)
    return row, Agreed(bool(late[0]), bool(stop.any()))
