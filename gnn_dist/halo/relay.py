"""Rows that cross the network once for each machine, however many of its ranks read them.

    owner ── direct ──────────────────────────> readers on the owner's machine
    owner ── across ──> relay on a machine ── spread ──> its readers there

A row's relay on a machine is drawn among the machine's ranks by original id, so that relays share
the work, and with it the network interfaces. Gradients take the way back; the relay adds those of
its machine, so that they too cross the network once.

Source: after the scatter and gather of "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (Narayanan et al.), arXiv 2104.04473, applied to halo rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import send_counted
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.shard.plan import HaloPlan

__all__ = ["RelayPlan", "plan_relay"]

RELAY_KEY = DrawKey(0, 0, (1 << 24) - 1)


@dataclass(frozen=True, eq=False)
class RelayPlan:
    """Three plans in place of one, and where their rows lie among the halo rows.

    Attributes:
        direct: From owned rows to the halo rows whose owner is on this machine.
        across: From owned rows to the rows that this rank relays.
        spread: From relayed rows to the halo rows whose owner is on another machine.
        direct_place: int64, positions of the direct rows among all halo rows.
        spread_place: int64, positions of the others.
        saved: Share of the rows between machines that are no longer sent, over all ranks.
    """

    direct: HaloPlan
    across: HaloPlan
    spread: HaloPlan
    direct_place: Tensor
    spread_place: Tensor
    saved: float


def plan_relay(plan: HaloPlan, machines: Sequence[object], transport: Transport) -> RelayPlan:
    """Collective. Find who relays which rows to whom.

    Args:
        plan: The rank's plan.
        machines: For each rank its machine, in any words.
        transport: The ranks.
    """
    rank, n = transport.rank, plan.num_owned
    near = torch.tensor([machine == machines[rank] for machine in machines])
    near = near.to(plan.src_id.device)
    reader, owner = (_ranks(ptr, plan.src_id.device) for ptr in (plan.send_ptr, plan.recv_ptr))
    everyone = torch.arange(n, device=plan.src_id.device)
    direct_place = near[owner].nonzero().squeeze(1)
    direct = plan.restrict(near[reader].nonzero().squeeze(1), direct_place, everyone, n)

    far = (~near[owner]).nonzero().squeeze(1)
    members = near.nonzero().squeeze(1)
    draw = uniform_by_id(RELAY_KEY, plan.halo_id[far])
    relay = members[(draw * len(members)).long()]
    order = relay.argsort(stable=True)
    far, relay = far[order], relay[order]
    asked = torch.stack([owner[far], plan.halo_id[far]], 1)
    asked_ptr = _offsets(relay, transport.world_size)
    wanted, wanted_ptr = send_counted(asked, asked_ptr, transport)
    # Ascending by owner, then by id: a node has one owner.
    relayed, index = torch.unique(wanted, dim=0, return_inverse=True)
    owners, ids = relayed.t().contiguous().unbind()
    spread = HaloPlan(
        len(relayed), index, wanted_ptr, asked_ptr, torch.cat([ids, plan.halo_id[far]])
    )

    from_ptr = _offsets(owners, transport.world_size)
    sent, sent_ptr = send_counted(ids, from_ptr, transport)
    own_id, place = plan.src_id[:n].sort()
    send_index = place[torch.searchsorted(own_id, sent)]
    across = HaloPlan(n, send_index, sent_ptr, from_ptr, torch.cat([plan.src_id[:n], ids]))
    rows = torch.tensor([len(relayed), len(far)], device=far.device)
    transport.all_reduce(rows).wait()
    crossing, before = rows.tolist()
    saved = 1.0 - crossing / before if before else 0.0
    return RelayPlan(direct, across, spread, direct_place, far, saved)


def _ranks(ptr: tuple[int, ...], device: torch.device) -> Tensor:
    """Return int64: for each of the positions that offsets divide, the rank that it belongs to."""
    ends = torch.tensor(ptr[1:], device=device)
    return torch.searchsorted(ends, torch.arange(ptr[-1], device=device), right=True)


def _offsets(ranks: Tensor, world_size: int) -> tuple[int, ...]:
    """Return (world_size + 1) offsets of the runs of equal ranks, which ascend."""
    bounds = torch.arange(world_size + 1, device=ranks.device)
    return tuple(torch.searchsorted(ranks, bounds).tolist())
