"""Asking the owners of nodes: what goes to each rank, and where its answers belong."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.ops.sampling import relabel

__all__ = ["Requests"]


@dataclass(frozen=True, eq=False)
class Requests:
    """Numbers of nodes of several batches that went to their owners, and those that came here.

        asked       batch 0          | batch 1          | ...        as they were given
        sent        to rank 0: batch 0, batch 1, ... | to rank 1: ...
        incoming    from rank 0: batch 0, ...        | from rank 1: ...

    Attributes:
        order: int64 (k,), which of the asked ids each sent one is.
        asked_ptr: Offsets of the batches in the asked ids.
        send_ptr: Offsets of what went to each rank.
        incoming: int64 (m,), rows of this rank that are asked for.
        recv_ptr: Offsets of what came from each rank.
        segments: (batch, begin, end) of each piece of `incoming`.
    """

    order: Tensor
    asked_ptr: tuple[int, ...]
    send_ptr: tuple[int, ...]
    incoming: Tensor
    recv_ptr: tuple[int, ...]
    segments: list[tuple[int, int, int]]
    transport: Transport
    channel: int

    @classmethod
    def send(
        cls, asked: Sequence[Tensor], rank_ptr: Tensor, transport: Transport, channel: int
    ) -> "Requests":
        """Collective. Send ids to their owners.

        Args:
            asked: For each batch int64 numbers of nodes; as many batches on every rank.
            rank_ptr: int64 (world_size + 1,), who owns what.
            transport: The ranks.
            channel: Of the exchanges.

        Raises:
            IndexError: An id is no node's; nothing was sent.
        """
        num_ranks, num_batches = transport.world_size, len(asked)
        ids = torch.cat([rank_ptr[:0], *asked])
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < int(rank_ptr[-1]):
            raise IndexError(f"numbers of nodes must lie in [0, {int(rank_ptr[-1])})")
        asked_ptr = tuple(accumulate((batch.numel() for batch in asked), initial=0))
        batch_of = torch.arange(num_batches).repeat_interleave(torch.tensor(asked_ptr).diff())
        owner = torch.bucketize(ids, rank_ptr[1:], right=True)
        group = owner * num_batches + batch_of
        order = torch.argsort(group, stable=True)
        counts = torch.bincount(group, minlength=num_ranks * num_batches).view(num_ranks, -1)
        coming = torch.empty_like(counts)
        one_each = range(num_ranks + 1)
        transport.exchange(counts, one_each, coming, one_each, channel).wait()
        send_ptr = (0, *counts.sum(1).cumsum(0).tolist())
        recv_ptr = (0, *coming.sum(1).cumsum(0).tolist())
        rows = (ids - rank_ptr[owner])[order]
        incoming = rows.new_empty(recv_ptr[-1])
        transport.exchange(rows, send_ptr, incoming, recv_ptr, channel).wait()
        ends = list(accumulate(coming.flatten().tolist(), initial=0))
        segments = [(i % num_batches, a, b) for i, (a, b) in enumerate(pairwise(ends)) if b > a]
        return cls(order, asked_ptr, send_ptr, incoming, recv_ptr, segments, transport, channel)

    def groups(self) -> Iterator[tuple[int, Tensor]]:
        """Yield what came of each batch from each rank, in order: batch, rows of this rank."""
        for batch, begin, end in self.segments:
            yield batch, self.incoming[begin:end]

    def along(self, rows: Tensor) -> Tensor:
        """Collective. Send a row (k, ...) with each asked id; return those of the incoming ids."""
        came = rows.new_empty((self.recv_ptr[-1], *rows.shape[1:]))
        sent = rows[self.order].contiguous()
        self.transport.exchange(sent, self.send_ptr, came, self.recv_ptr, self.channel).wait()
        return came

    def shares(self) -> Tensor:
        """Return float64 (m,), one by how many ranks ask for each incoming id in its batch."""
        share = torch.empty(self.incoming.numel(), dtype=torch.float64)
        for batch in {batch for batch, _, _ in self.segments}:
            pieces = [torch.arange(a, b) for other, a, b in self.segments if other == batch]
            at = torch.cat(pieces)
            _, local = relabel(at[:0], self.incoming[at])
            share[at] = torch.bincount(local).double().reciprocal()[local.long()]
        return share

    def answer(self, counts: Tensor, answers: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Collective. Send several values for each incoming id; return those for the asked ones.

        Args:
            counts: int64 (m,), how many values belong to each incoming id.
            answers: Tensors (sum of counts, ...), the values.

        Returns:
            int64 (k + 1,), offsets for the asked ids, and for each of `answers` what came.
        """
        received = self._return(counts, self.recv_ptr, self.send_ptr)
        ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        starts = torch.cat([received.new_zeros(1), received.cumsum(0)])
        send_ptr = ends[list(self.recv_ptr)].tolist()
        recv_ptr = starts[list(self.send_ptr)].tolist()
        asked_counts = torch.empty_like(received)
        asked_counts[self.order] = received
        indptr = torch.cat([asked_counts.new_zeros(1), asked_counts.cumsum(0)])
        # Where in the order of the asked ids each value that came belongs.
        place = (indptr[self.order] - starts[:-1]).repeat_interleave(received)
        place += torch.arange(place.numel())
        values = []
        for answer in answers:
            came = self._return(answer, send_ptr, recv_ptr)
            value = torch.empty_like(came)
            value[place] = came
            values.append(value)
        return indptr, values

    def answer_rows(self, rows: Tensor) -> Tensor:
        """Collective. Send a row (m, ...) for each incoming id; return those of the asked ones."""
        came = self._return(rows, self.recv_ptr, self.send_ptr)
        out = torch.empty_like(came)
        out[self.order] = came
        return out

    def of_batches(self, rows: Tensor) -> list[Tensor]:
        """Return the part of rows of the asked ids (k, ...) that belongs to each batch."""
        return [rows[a:b] for a, b in pairwise(self.asked_ptr)]

    def offsets(self, indptr: Tensor) -> list[Tensor]:
        """Return the part of offsets (k + 1,) that belongs to each batch, from zero."""
        return [
            indptr[a : b + 1] - indptr[a]
            for a, b in zip(self.asked_ptr, self.asked_ptr[1:], strict=False)
        ]

    def split(self, indptr: Tensor, values: Tensor) -> list[Tensor]:
        """Return the part of values that belongs to each batch."""
        ends = indptr[list(self.asked_ptr)].tolist()
        return [values[a:b] for a, b in pairwise(ends)]

    def _return(self, rows: Tensor, send_ptr: Sequence[int], recv_ptr: Sequence[int]) -> Tensor:
        """Collective. Send what belongs to each rank; return what came."""
        came = rows.new_empty((recv_ptr[-1], *rows.shape[1:]))
        self.transport.exchange(rows.contiguous(), send_ptr, came, recv_ptr, self.channel).wait()
        return came
