"""The static communication plan of a shard: which rows go where. It holds no buffers."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gnn_dist.ops.rows import scatter_add_rows

__all__ = ["HaloPlan", "kept_ptr"]


@dataclass(frozen=True, eq=False)
class HaloPlan:
    """Who sends which owned rows to whom, and where received rows lie.

        forward   owned rows [send_index] --> halo rows           (values to those who read them)
        reverse   halo rows               --> boundary rows       (gradients back to the owner)

    A row is sent once to every rank that reads it, so the reverse may bring several rows for one
    owned node; they are added. On a vertex-cut owned nodes are roots, and halo nodes other clones.

    Attributes:
        num_owned: n.
        send_index: int64 (s,), local ids of owned nodes, grouped by receiving rank; each once
            inside a group, ascending in a whole shard.
        send_ptr: (world_size + 1) offsets into `send_index`.
        recv_ptr: (world_size + 1) offsets into the halo rows, which are grouped by owner.
        src_id: int64 (n + h,), original ids of owned and halo nodes.
        clones: Whether halo nodes have in-edges here, which their owners have not (vertex-cut).
    """

    num_owned: int
    send_index: Tensor
    send_ptr: tuple[int, ...]
    recv_ptr: tuple[int, ...]
    src_id: Tensor
    clones: bool = False

    @property
    def halo_id(self) -> Tensor:
        """int64 (h,), original ids of halo nodes."""
        return self.src_id[self.num_owned :]

    @cached_property
    def send_id(self) -> Tensor:
        """int64 (s,), original ids of the rows sent forward."""
        return self.src_id[self.send_index]

    @cached_property
    def boundary(self) -> Tensor:
        """int64 (b,), local ids of the owned nodes that other ranks hold, ascending."""
        boundary: Tensor = torch.unique(self.send_index)
        return boundary

    @cached_property
    def boundary_slot(self) -> Tensor:
        """int64 (s,), where in `boundary` the node of each row sent forward is."""
        return torch.searchsorted(self.boundary, self.send_index)

    @property
    def num_halo(self) -> int:
        """Rows received forward, h."""
        return self.recv_ptr[-1]

    @property
    def num_boundary(self) -> int:
        """Rows sent forward, s."""
        return self.send_ptr[-1]

    def to(self, device: torch.device) -> "HaloPlan":
        """Return the plan with its index and ids on another device."""
        index, ids = self.send_index.to(device), self.src_id.to(device)
        return replace(self, send_index=index, src_id=ids)

    def restrict(self, sent: Tensor, halo: Tensor, place: Tensor, num_owned: int) -> "HaloPlan":
        """Return the plan of some of its rows, over fewer owned nodes in another order.

        Args:
            sent: int64, ascending, positions of the rows that are still sent.
            halo: int64, ascending, positions of the halo rows that still arrive: those that their
                owners send.
            place: int64 (n,), the new local id of each owned node.
            num_owned: How many of them stay: those whose new id is below.
        """
        old = torch.empty_like(place)
        old[place] = torch.arange(len(place), device=place.device)
        return HaloPlan(
            num_owned=num_owned,
            send_index=place[self.send_index[sent]],
            send_ptr=kept_ptr(self.send_ptr, sent),
            recv_ptr=kept_ptr(self.recv_ptr, halo),
            src_id=torch.cat([self.src_id[old[:num_owned]], self.halo_id[halo]]),
        )

    def add_boundary(self, out: Tensor, rows: Tensor) -> Tensor:
        """Add boundary rows (s, ...) of a reverse exchange to owned rows (n, ...), in place."""
        return scatter_add_rows(out, self.send_index, rows)


def kept_ptr(ptr: tuple[int, ...], kept: Tensor) -> tuple[int, ...]:
    """Return offsets into the kept positions (int64, ascending), from offsets into all."""
    ends = torch.tensor(ptr, device=kept.device)
    return tuple(torch.searchsorted(kept, ends).tolist())
