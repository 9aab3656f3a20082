"""The structure of a vertex-cut's shard: of each node, what all its clones have together."""

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import exchange_rows, return_rows
from gnn_dist.ops.csr import CSR
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.structure import Clones, Structure, last_loops, weight_without_loops

__all__ = ["clone_structure"]


def clone_structure(
    csr: CSR,
    plan: HaloPlan,
    transport: Transport,
    *,
    edge_weight: Tensor | None = None,
    edge_id: Tensor | None = None,
) -> Structure:
    """Collective. Make the structure of edges whose ends have other edges on other ranks.

    Args:
        csr: (n + h, n + h), local nodes to local nodes.
        plan: Which clones are whose.
        transport: The ranks.
        edge_weight: (nnz,), or None.
        edge_id: int64 (nnz,), the order in which edges were given: the last of a node's loops says
            what weight its loop has. None where edges have no data.
    """
    num_loops = torch.bincount(csr.rows[csr.indices == csr.rows], minlength=csr.num_rows)
    counts = torch.stack([csr.counts - num_loops, num_loops], 1)
    # Sums of integers below 2^53 are exact in float64.
    local = torch.cat([weight_without_loops(csr, edge_weight)[:, None], counts.double()], 1)
    owned = local[: plan.num_owned].contiguous()
    total = _for_all(
        plan.add_boundary(owned, return_rows(local[plan.num_owned :], plan, transport)),
        plan,
        transport,
    )
    loop_weight = torch.ones_like(total[:, 0])
    if edge_weight is not None:
        loop_weight = _loop_weight(csr, plan, transport, (edge_weight, edge_id))
    return Structure(
        csr=csr,
        src_id=plan.src_id,
        degree=total[:, 0] + loop_weight,
        edge_weight=edge_weight,
        num_in_edges=total[:, 1:].sum(1).long(),
        clones=Clones(plan.num_owned, plan.boundary, loop_weight, total[:, 1].long()),
    )


def _for_all(owned: Tensor, plan: HaloPlan, transport: Transport) -> Tensor:
    """Collective. Return rows of all local nodes, from those of owned nodes."""
    return torch.cat([owned, exchange_rows(owned, plan, transport)])


def _loop_weight(
    csr: CSR, plan: HaloPlan, transport: Transport, edge_data: tuple[Tensor, Tensor | None]
) -> Tensor:
    """Collective. Return float64 (n + h,), the weight of each node's last loop anywhere, or 1."""
    edge_weight, edge_id = edge_data
    rows, position = last_loops(csr)
    # When each node's loop was given, -1 without one; and its weight.
    last = torch.full((csr.num_rows, 2), -1.0, dtype=torch.float64, device=csr.device)
    last[:, 1] = 1.0
    last[rows, 0] = 0.0 if edge_id is None else edge_id[position].double()
    last[rows, 1] = edge_weight[position].double()
    owned = last[: plan.num_owned].contiguous()
    others = return_rows(last[plan.num_owned :], plan, transport)
    latest = owned[:, 0].scatter_reduce(0, plan.send_index, others[:, 0], "amax")
    later = others[:, 0] > owned[plan.send_index, 0]
    later &= others[:, 0] == latest[plan.send_index]
    owned[plan.send_index[later], 1] = others[later, 1]
    return _for_all(owned[:, 1].contiguous(), plan, transport)
