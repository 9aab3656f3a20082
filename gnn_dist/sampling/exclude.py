"""Edges that messages must not go along, since they are what is to be learned."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import send_counted
from gnn_dist.sampling.edges import EdgeShare
from gnn_dist.sampling.negatives import WholeBatch
from gnn_dist.sampling.neighbor import Sample

__all__ = ["gather_batches", "without_batch"]


def gather_batches(shares: Sequence[EdgeShare], transport: Transport) -> list[WholeBatch]:
    """Collective. Return all edges of some batches, of all ranks, on every rank: 16 bytes each.

    Args:
        shares: This rank's part of each batch.
        transport: The ranks.
    """
    sizes = [share.batch_size for share in shares]
    begin = torch.tensor([0, *sizes]).cumsum(0)
    rows = [
        torch.stack([share.place + begin[i], share.edges.src, share.edges.dst], 1)
        for i, share in enumerate(shares)
    ]
    mine, size = torch.cat(rows), transport.world_size
    ptr = [len(mine) * rank for rank in range(size + 1)]
    came, _ = send_counted(mine.repeat(size, 1), ptr, transport)
    ends = torch.empty(int(begin[-1]), 2, dtype=torch.int64)
    ends[came[:, 0]] = came[:, 1:]
    return [WholeBatch(part[:, 0], part[:, 1]) for part in torch.split(ends, sizes)]


class _Pairs(NamedTuple):
    """Pairs of nodes that can be searched.

    Attributes:
        key: int64, ascending: row of the destination times the number of nodes, plus the source.
        num_nodes: Of all ranks; its square has to fit 64 bits.
    """

    key: Tensor
    num_nodes: int

    def hold(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return bool, which pairs of numbers are among them."""
        wanted = dst * self.num_nodes + src
        at = torch.searchsorted(self.key, wanted).clamp_(max=len(self.key) - 1)
        return self.key[at] == wanted


def without_batch(sample: Sample, whole: WholeBatch, num_nodes: int) -> Sample:
    """Leave a batch's own edges, all copies of them, and their reverses out of what was drawn.

    What was drawn does not depend on the batch's edges, so neither does it on the number of ranks;
    nodes that were reached along one of them stay, without an effect on the seeds.

    Args:
        sample: What was drawn.
        whole: The edges of the batch, of all ranks.
        num_nodes: Nodes of all ranks.

    Returns:
        Of edges that remain, each stands for as many as before: sums over them are right on
        average.
    """
    forward, backward = whole.dst * num_nodes + whole.src, whole.src * num_nodes + whole.dst
    banned = _Pairs(torch.cat([forward, backward]).sort().values, num_nodes)
    layers, edges = [], []
    for csr, values in zip(sample.layers, sample.edges, strict=True):
        src = sample.n_id[csr.indices.long()]
        kept = csr.select(~banned.hold(src, sample.n_id[csr.rows]))
        layers.append(kept.csr)
        edges.append({name: kept.take(rows) for name, rows in values.items()})
    return replace(sample, layers=layers, edges=edges, drawn=[csr.counts for csr in sample.layers])
