"""Rows that travel once, while a shard is made: along a plan, without gradients or policies."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.ops.csr import CSR
from gnn_dist.ops.rows import gather_rows
from gnn_dist.ops.spmm import SparseRows
from gnn_dist.shard.plan import HaloPlan

__all__ = ["PLAN_CHANNEL", "exchange_rows", "return_rows", "send_counted", "with_halo"]

PLAN_CHANNEL = 0  # no layer's exchange is in flight while a plan is made or a shard is loaded


def exchange_rows(rows: Tensor, plan: HaloPlan, transport: Transport) -> Tensor:
    """Collective. Return the halo rows (h, ...) of some owned rows (n, ...), without gradients."""
    received = rows.new_empty((plan.num_halo, *rows.shape[1:]))
    transport.exchange(
        gather_rows(rows, plan.send_index), plan.send_ptr, received, plan.recv_ptr, PLAN_CHANNEL
    ).wait()
    return received


def return_rows(rows: Tensor, plan: HaloPlan, transport: Transport) -> Tensor:
    """Collective. Send halo rows (h, ...) to their owners; return the boundary rows (s, ...)."""
    received = rows.new_empty((plan.num_boundary, *rows.shape[1:]))
    transport.exchange(
        rows.contiguous(), plan.recv_ptr, received, plan.send_ptr, PLAN_CHANNEL
    ).wait()
    return received


def send_counted(
    rows: Tensor, ptr: Sequence[int], transport: Transport
) -> tuple[Tensor, tuple[int, ...]]:
    """Collective. Send rows to ranks that do not know how many will come.

    Args:
        rows: (k, ...), grouped by receiving rank.
        ptr: (world_size + 1) offsets of what goes to each rank.
        transport: The ranks.

    Returns:
        What the others sent here, grouped by sender, and its offsets.
    """
    counts = torch.tensor(ptr, device=rows.device).diff()
    coming = torch.empty_like(counts)
    one_each = range(transport.world_size + 1)
    transport.exchange(counts, one_each, coming, one_each, PLAN_CHANNEL).wait()
    coming_ptr = (0, *coming.cumsum(0).tolist())
    received = rows.new_empty((coming_ptr[-1], *rows.shape[1:]))
    transport.exchange(rows.contiguous(), ptr, received, coming_ptr, PLAN_CHANNEL).wait()
    return received, coming_ptr


def with_halo(
    features: Tensor | SparseRows, plan: HaloPlan, transport: Transport
) -> Tensor | SparseRows:
    """Collective. Return the features (n + h, F) of all local nodes, from those of owned nodes."""
    if isinstance(features, Tensor):
        return torch.cat([features, exchange_rows(features, plan, transport)])
    csr = features.csr
    counts = torch.cat([csr.counts, exchange_rows(csr.counts, plan, transport)])
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    sent = csr.take_rows(plan.send_index)
    send_ptr = sent.csr.indptr[list(plan.send_ptr)].tolist()
    halo_ptr = indptr[plan.num_owned :] - csr.nnz
    recv_ptr = halo_ptr[list(plan.recv_ptr)].tolist()

    def with_received(values: Tensor, to_send: Tensor) -> Tensor:
        """Collective. Return values of owned rows' entries, then of halo rows'."""
        received = values.new_empty(recv_ptr[-1])
        transport.exchange(to_send, send_ptr, received, recv_ptr, PLAN_CHANNEL).wait()
        return torch.cat([values, received])

    indices = with_received(csr.indices, sent.csr.indices)
    values = with_received(features.values, sent.take(features.values))
    return SparseRows(CSR(indptr, indices, csr.num_cols), values)
