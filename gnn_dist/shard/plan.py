"""The static communication plan of a shard: which rows go where. It holds no buffers."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from gnn_dist.ops.rows import scatter_add_rows

__all__ = ["HaloPlan"]


@dataclass(frozen=True, eq=False)
class HaloPlan:
    """Who sends which owned rows to whom, and where received rows lie.

        forward   owned rows [send_index] --> halo rows           (values to those who read them)
        reverse   halo rows               --> boundary rows       (gradients back to the owner)

    A row is sent once to every rank that reads it, so the reverse may bring several rows for one
    owned node; they are added.

    Attributes:
        num_owned: n.
        send_index: int64 (s,), local ids of owned nodes, grouped by receiving rank and ascending
            inside a group.
        send_ptr: (world_size + 1) offsets into `send_index`.
        recv_ptr: (world_size + 1) offsets into the halo rows, which are grouped by owner.
        src_id: int64 (n + h,), original ids of owned and halo nodes.
    """

    num_owned: int
    send_index: Tensor
    send_ptr: tuple[int, ...]
    recv_ptr: tuple[int, ...]
    src_id: Tensor

    @property
    def halo_id(self) -> Tensor:
        """int64 (h,), original ids of halo nodes."""
        return self.src_id[self.num_owned :]

    @cached_property
    def send_id(self) -> Tensor:
        """int64 (s,), original ids of the rows sent forward."""
        return self.src_id[self.send_index]

    @property
    def num_halo(self) -> int:
        """Rows received forward, h."""
        return self.recv_ptr[-1]

    @property
    def num_boundary(self) -> int:
        """Rows sent forward, s."""
        return self.send_ptr[-1]

    def add_boundary(self, out: Tensor, rows: Tensor) -> Tensor:
        """Add boundary rows (s, ...) of a reverse exchange to owned rows (n, ...), in place."""
        return scatter_add_rows(out, self.send_index, rows)
