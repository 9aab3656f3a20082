"""One direction of a plan: which rows go to whom, and what comes from whom."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gnn_dist.ops.draws import DrawKey, edge_ids, uniform_by_id
from gnn_dist.ops.rows import new_rows_like, scatter_add_rows
from gnn_dist.shard.plan import HaloPlan, kept_ptr

__all__ = ["Route", "back", "there"]

# The bin of a row is the same in every run, so it is drawn with a key of its own.
BIN_KEY = DrawKey(0, 0, (1 << 25) - 1)


@dataclass(frozen=True, eq=False)
class Route:
    """Rows to send, rows to receive; the rows of one rank lie together.

    Attributes:
        rank: This rank.
        to_readers: Rows go from owners to readers; False: back from readers to owners.
        send_index: int64 (s,), which of the rows given are sent; None sends them as they are.
        send_id: int64 (s,), original ids of the rows sent.
        send_ptr: (world_size + 1) offsets of what is sent to each rank.
        recv_id: int64 (r,), original ids of the rows received.
        recv_ptr: (world_size + 1) offsets of what comes from each rank.
        recv_index: int64 (r,), where received rows lie among all `num_rows`; None: in order.
        num_rows: Rows of the whole result; r unless the route is restricted.
    """

    rank: int
    to_readers: bool
    send_index: Tensor | None
    send_id: Tensor
    send_ptr: tuple[int, ...]
    recv_id: Tensor
    recv_ptr: tuple[int, ...]
    recv_index: Tensor | None
    num_rows: int
    _made: dict[str, tuple["Route", ...]] = field(init=False, repr=False, default_factory=dict)

    @property
    def num_sent(self) -> int:
        """Rows sent, s."""
        return self.send_ptr[-1]

    @property
    def num_received(self) -> int:
        """Rows received, r."""
        return self.recv_ptr[-1]

    @property
    def num_messages(self) -> int:
        """Ranks that anything is sent to."""
        return sum(a < b for a, b in zip(self.send_ptr, self.send_ptr[1:], strict=False))

    @cached_property
    def send_key(self) -> Tensor:
        """int64 (s,), a key of (node, reader) for each row sent; its receiver has the same."""
        return self._pair_key(self.send_id, self.send_ptr if self.to_readers else None)

    @cached_property
    def recv_key(self) -> Tensor:
        """int64 (r,), a key of (node, reader) for each row received."""
        return self._pair_key(self.recv_id, None if self.to_readers else self.recv_ptr)

    def restrict(self, send: Tensor, recv: Tensor) -> "Route":
        """Return the route of some of its rows.

        Args:
            send: bool (s,), rows to send.
            recv: bool (r,), rows to receive: those that their senders send.
        """
        sent, received = (mask.nonzero().squeeze(1) for mask in (send, recv))
        return replace(
            self,
            send_index=sent if self.send_index is None else self.send_index[sent],
            send_id=self.send_id[sent],
            send_ptr=kept_ptr(self.send_ptr, sent),
            recv_id=self.recv_id[received],
            recv_ptr=kept_ptr(self.recv_ptr, received),
            recv_index=received if self.recv_index is None else self.recv_index[received],
        )

    def in_bins(self, num_bins: int) -> tuple["Route", ...]:
        """Return the route cut into bins of about equal size, by the original ids of rows."""

        def bin_of(ids: Tensor) -> Tensor:
            return (uniform_by_id(BIN_KEY, ids) * num_bins).long()

        def cut() -> tuple[Route, ...]:
            sent, received = bin_of(self.send_id), bin_of(self.recv_id)
            return tuple(self.restrict(sent == b, received == b) for b in range(num_bins))

        return (self,) if num_bins == 1 else self._once(f"{num_bins} bins", cut)

    def by_distance(self) -> tuple["Route", ...]:
        """Return the route cut by ranks: to rank + d and from rank - d, for d = 1, 2, ..."""
        size = len(self.send_ptr) - 1

        def of_peer(ids: Tensor, ptr: tuple[int, ...], peer: int) -> Tensor:
            mask = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
            mask[ptr[peer] : ptr[peer + 1]] = True
            return mask

        def cut() -> tuple[Route, ...]:
            return tuple(
                self.restrict(
                    of_peer(self.send_id, self.send_ptr, (self.rank + d) % size),
                    of_peer(self.recv_id, self.recv_ptr, (self.rank - d) % size),
                )
                for d in range(1, size)
            )

        return self._once("distances", cut)

    def copying(self) -> "Route":
        """Return the route with a `send_index`, so that what is sent is a copy of what is given."""

        def made() -> tuple[Route, ...]:
            every = torch.arange(self.num_sent, device=self.send_id.device)
            return (replace(self, send_index=every),)

        return self if self.send_index is not None else self._once("copying", made)[0]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the rows sent and received, by original id, and of the ranks."""
        digest = hashlib.sha256(repr((self.rank, self.send_ptr, self.recv_ptr)).encode())
        for ids in (self.send_id, self.recv_id):
            digest.update(ids.cpu().numpy().tobytes())
        return digest.hexdigest()

    def spread(self, rows: Tensor) -> Tensor:
        """Return all rows (num_rows, ...): the received ones (r, ...), and zeros."""
        if self.recv_index is None:
            return rows
        out = new_rows_like(rows, self.num_rows).zero_()
        return scatter_add_rows(out, self.recv_index, rows)

    def _once(self, name: str, make: Callable[[], tuple["Route", ...]]) -> tuple["Route", ...]:
        """Return what was made of this route, which all layers share, making it the first time."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _pair_key(self, ids: Tensor, ptr: tuple[int, ...] | None) -> Tensor:
        """Combine original ids with their readers: this rank, or by offsets the rank of each."""
        if ptr is None:
            reader = torch.full_like(ids, self.rank)
        else:
            ends = torch.tensor(ptr[1:], device=ids.device)
            places = torch.arange(len(ids), device=ids.device)
            reader = torch.searchsorted(ends, places, right=True)
        return edge_ids(ids, reader, torch.zeros_like(ids))


def there(plan: HaloPlan, rank: int) -> Route:
    """Return the route of values: owned rows (n, ...) in, halo rows (h, ...) out."""
    return Route(
        rank=rank,
        to_readers=True,
        send_index=plan.send_index,
        send_id=plan.send_id,
        send_ptr=plan.send_ptr,
        recv_id=plan.halo_id,
        recv_ptr=plan.recv_ptr,
        recv_index=None,
        num_rows=plan.num_halo,
    )


def back(plan: HaloPlan, rank: int) -> Route:
    """Return the route of gradients: halo rows (h, ...) in, boundary rows (s, ...) out."""
    forth = there(plan, rank)
    return replace(
        forth,
        to_readers=False,
        send_index=None,
        send_id=forth.recv_id,
        send_ptr=forth.recv_ptr,
        recv_id=forth.send_id,
        recv_ptr=forth.send_ptr,
        num_rows=plan.num_boundary,
    )
