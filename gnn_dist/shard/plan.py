"""The static communication plan of a shard: which rows go where. It holds no buffers."""

from dataclasses import dataclass

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
    """

    num_owned: int
    send_index: Tensor
    send_ptr: tuple[int, ...]
    recv_ptr: tuple[int, ...]

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
