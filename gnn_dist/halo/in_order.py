"""Rows of all nodes in the order of their original ids, on rank 0, a piece at a time."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.halo.transfers import send_counted
from gnn_dist.ops.rows import gather_rows

__all__ = ["PIECE_BYTES", "rows_in_order"]

PIECE_BYTES = 32 << 20


def rows_in_order(
    rows: Tensor,
    node_id: Tensor,
    num_nodes: int,
    transport: Transport,
    *,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[tuple[int, Tensor]]:
    """Collective. Yield ranges of all nodes' rows, at every step on all ranks; hold no more.

    Args:
        rows: (n, ...), of the nodes here.
        node_id: int64 (n,), their original ids.
        num_nodes: N, nodes of all ranks.
        transport: The ranks.
        piece_bytes: Size of a range, alike on all ranks.

    Yields:
        The first original id of a range, and on rank 0 its rows (k, ...) on the CPU; elsewhere
        none (0, ...).

    Raises:
        ConfigError: On every rank: the ranks have not as many rows as there are nodes.
    """
    count = torch.tensor([node_id.numel()], device=node_id.device)
    transport.all_reduce(count).wait()
    if int(count) != num_nodes:
        raise ConfigError(
            f"the ranks together must have a row for each of {num_nodes} nodes, got {int(count)}: "
            "use the shard of the whole graph"
        )
    ascending, order = node_id.sort()
    width = max(1, rows.element_size() * math.prod(rows.shape[1:]))
    step = max(1, piece_bytes // width)
    for start in range(0, num_nodes, step):
        stop = min(start + step, num_nodes)
        ends = torch.tensor([start, stop], device=ascending.device)
        first, last = torch.searchsorted(ascending, ends).tolist()
        ptr = [0] + [last - first] * transport.world_size
        ids, _ = send_counted(ascending[first:last], ptr, transport)
        came, _ = send_counted(gather_rows(rows, order[first:last]), ptr, transport)
        piece = torch.empty_like(came)
        piece[ids - start] = came
        yield start, piece.cpu()
