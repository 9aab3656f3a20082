"""How likely a batch needs a node's row, and so which rows of other ranks are worth keeping."""

from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import return_rows, send_counted
from gnn_dist.ops.rows import scatter_add_rows
from gnn_dist.sampling.neighbor import Fanout
from gnn_dist.sampling.topology import Topology
from gnn_dist.shard.plan import HaloPlan

__all__ = ["Likely", "access_probability", "most_likely"]

ENTRIES_AT_ONCE = 1 << 22
ALMOST_ONE = 1.0 - 1e-12


class Likely(NamedTuple):
    """Rows of other ranks that a rank keeps.

    Attributes:
        ids: int64 (c,), numbers of the nodes, the most likely first.
        hit_rate: Share of the remote rows of batches that are expected to be among them; NaN if
            none is expected at all.
    """

    ids: Tensor
    hit_rate: float


def access_probability(
    topology: Topology, plan: HaloPlan, seeds: Tensor, fanout: Fanout, transport: Transport
) -> Tensor:
    """Collective. Return float64 (n, world_size): how likely each rank's part of a batch needs us.

    A node that is in a batch with probability p draws a certain one of its d in-neighbours with
    probability min(1, k / d); draws are taken to be independent, and without weights of edges.

    Source: "Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion
    Analysis and Caching" (Kaler et al.), arXiv 2305.03152.

    Args:
        topology: This rank's rows.
        plan: Of the shard's halo.
        seeds: float64 (n,), how likely each owned node is a seed of this rank in a batch.
        fanout: How many neighbours are drawn.
        transport: The ranks.
    """
    chance = torch.zeros(len(seeds), transport.world_size, dtype=torch.float64)
    chance[:, transport.rank] = seeds
    degree = topology.csr.counts.double().clamp(min=1)
    for k in fanout.num_neighbors:
        if fanout.replace and k >= 0:
            drawn = 1.0 - (1.0 - 1.0 / degree).pow(k)
        else:
            drawn = torch.ones_like(degree) if k < 0 else (k / degree).clamp(max=1.0)
        # Of all who may draw a node, none does: a product, so a sum of logarithms.
        missed = torch.log1p(-(chance * drawn.unsqueeze(1)).clamp(max=ALMOST_ONE))
        missed = _over_readers(missed, topology, plan, transport)
        chance = 1.0 - (1.0 - chance) * missed.exp()
    return chance


def _over_readers(rows: Tensor, topology: Topology, plan: HaloPlan, transport: Transport) -> Tensor:
    """Collective. Return (n, W): for each owned node the sum of the rows of all who read it."""
    csr, n = topology.csr, plan.num_owned
    total = rows.new_zeros(csr.num_cols, rows.size(1))
    reader = torch.repeat_interleave(csr.counts) if csr.nnz <= ENTRIES_AT_ONCE else None
    for begin in range(0, csr.nnz, ENTRIES_AT_ONCE):
        end = min(begin + ENTRIES_AT_ONCE, csr.nnz)
        at = reader
        if at is None:
            at = torch.searchsorted(csr.indptr, torch.arange(begin, end), right=True) - 1
        scatter_add_rows(total, csr.indices[begin:end], rows[at])
    back = return_rows(total[n:], plan, transport)
    return scatter_add_rows(total[:n].contiguous(), plan.send_index, back)


def most_likely(chance: Tensor, topology: Topology, num_rows: int, transport: Transport) -> Likely:
    """Collective. Choose the rows of other ranks that this one is most likely to need.

    Args:
        chance: As `access_probability` returns it.
        topology: This rank's rows.
        num_rows: How many to choose; may differ between ranks.
        transport: The ranks.
    """
    wanted = torch.zeros(transport.world_size, dtype=torch.int64)
    wanted[transport.rank] = num_rows
    transport.all_reduce(wanted).wait()
    first = int(topology.rank_ptr[transport.rank])
    expected = chance.sum(0)
    ids, values, ptr = [], [], [0]
    for rank, most in enumerate(wanted.tolist()):
        column = chance[:, rank]
        useful = 0 if rank == transport.rank else min(most, int((column > 0).sum()))
        best = column.topk(useful)
        ids.append(best.indices + first)
        values.append(best.values)
        ptr.append(ptr[-1] + useful)
    expected[transport.rank] = 0.0  # own rows are no remote ones
    all_expected = expected.clone()
    transport.all_reduce(all_expected).wait()
    offers = torch.stack([torch.cat(ids).double(), torch.cat(values)], 1)
    came, _ = send_counted(offers, ptr, transport)
    best = came[:, 1].topk(min(num_rows, len(came)))
    total = float(all_expected[transport.rank])
    rate = float(best.values.sum()) / total if total > 0.0 else float("nan")
    return Likely(came[best.indices, 0].long(), rate)
