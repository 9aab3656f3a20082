"""Training on the nodes that the loss depends on, and no others: exact, with fewer rows to travel.

    last layer      destinations: training nodes                     D_L
    layer before    destinations: those, and what they read          D_L-1
    first layer     sources: all within L hops of a training node    D_0

Sets are nested, and owned nodes are reordered so that each is a prefix of the one before:

    owned   | D_L | rest of D_L-1 | ... | rest of D_0 | (left out)

so a layer's output is the next layer's input as it is.

Source: active subsets of layers follow "Efficient Strong Scaling Through Burst Parallel Training"
(Park et al.), arXiv 2112.10065, applied to the nodes of a graph.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import return_rows
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.rows import gather_rows
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.structure import Structure

__all__ = ["ActiveLayers", "active_layers"]


@dataclass(frozen=True, eq=False)
class ActiveLayers:
    """What each layer computes if only some nodes' outputs are wanted.

    Attributes:
        inputs: int64 (d_0,), local ids of the owned nodes whose features the first layer takes.
        outputs: int64 (d_L,), local ids of the owned nodes whose outputs the last layer gives.
        structures: One per layer, in their order.
        plans: One per layer: `num_owned` is the number of rows that the layer takes.
    """

    inputs: Tensor
    outputs: Tensor
    structures: tuple[Structure, ...]
    plans: tuple[HaloPlan, ...]


def active_layers(
    structure: Structure, plan: HaloPlan, wanted: Tensor, *, layers: int, transport: Transport
) -> ActiveLayers:
    """Collective. Find, from the last layer to the first, what each has to compute.

    Args:
        structure: The shard's.
        plan: The shard's.
        wanted: bool (n,), owned nodes whose outputs are wanted.
        layers: How many layers there are, L.
        transport: The ranks.
    """
    active = [wanted]
    used: list[Tensor] = []
    sent: list[Tensor] = []
    for _ in range(layers):
        reads = _sources_of(structure.csr, active[0])
        halo = reads[plan.num_owned :]
        asked = return_rows(halo, plan, transport)
        owned = reads[: plan.num_owned] | active[0]
        owned[plan.send_index[asked]] = True
        active.insert(0, owned)
        used.insert(0, halo)
        sent.insert(0, asked)
    # The later a layer in which a node still counts, the nearer it is to the front.
    depth = torch.stack(active).sum(0)
    order = depth.argsort(descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    sizes = [int(mask.sum()) for mask in active]
    made = [
        _layer(structure, plan, (order, place), sizes[i : i + 2], (used[i], sent[i]))
        for i in range(layers)
    ]
    structures, plans = zip(*made, strict=True)
    return ActiveLayers(order[: sizes[0]], order[: sizes[-1]], structures, plans)


def _sources_of(csr: CSR, rows: Tensor) -> Tensor:
    """Return bool (num_cols,): the columns of the entries of some rows, bool (R,)."""
    reads = torch.zeros(csr.num_cols, dtype=torch.bool, device=csr.device)
    reads[csr.indices[rows.repeat_interleave(csr.counts)].long()] = True
    return reads


def _layer(
    structure: Structure,
    plan: HaloPlan,
    ordering: tuple[Tensor, Tensor],
    sizes: list[int],
    travels: tuple[Tensor, Tensor],
) -> tuple[Structure, HaloPlan]:
    """Return one layer's structure and plan.

    Args:
        structure: The shard's.
        plan: The shard's.
        ordering: int64 (n,), local ids in their new order, and the new place of each.
        sizes: Rows that the layer takes, and rows that it gives.
        travels: bool (h,), halo rows it reads; bool (s,), rows that others read of it.
    """
    order, place = ordering
    num_in, num_out = sizes
    halo, sent = (mask.nonzero().squeeze(1) for mask in travels)
    chosen = torch.cat([order[:num_in], plan.num_owned + halo])
    restricted = plan.restrict(sent, halo, place, num_in)
    new_column = torch.full_like(structure.src_id, -1)
    new_column[chosen] = torch.arange(len(chosen), device=chosen.device)
    kept = structure.csr.take_rows(order[:num_out])
    columns = gather_rows(new_column.int(), kept.csr.indices)
    weight, counts = structure.edge_weight, structure.num_in_edges
    return replace(
        structure,
        symmetric=False,  # a source may be no destination
        csr=CSR(kept.csr.indptr, columns, len(chosen)),
        src_id=restricted.src_id,
        degree=structure.degree[chosen],
        edge_weight=None if weight is None else kept.take(weight),
        num_in_edges=None if counts is None else counts[chosen],
    ), restricted
