"""Edges that are learned from, put into the same batches for any number of ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.transfers import send_counted
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.sampling.seeds import ORDER_SITE, BatchPlan

__all__ = ["EdgeBatches", "EdgeRows", "EdgeShare"]

# Batches that are dealt out in one round of messages.
BATCHES_AT_ONCE = 64
PLACE_BITS = 53  # of a uniform number


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Edges to learn from, with what draws for them depend on.

    Attributes:
        ids: int64 (k, 5); columns are `src`, `dst`, numbers (see `Topology`); `src_id`, original
            ids of sources; `draw_id`, made of the original ids of both ends and of the number of
            the copy; and `position`, where an edge is among those that were given.
        label: (k, ...), or None.
    """

    ids: Tensor
    label: Tensor | None = None

    @property
    def src(self) -> Tensor:
        """int64 (k,), numbers of the sources."""
        return self.ids[:, 0]

    @property
    def dst(self) -> Tensor:
        """int64 (k,), numbers of the destinations."""
        return self.ids[:, 1]

    @property
    def src_id(self) -> Tensor:
        """int64 (k,), original ids of the sources."""
        return self.ids[:, 2]

    @property
    def draw_id(self) -> Tensor:
        """int64 (k,), what draws depend on."""
        return self.ids[:, 3]

    @property
    def position(self) -> Tensor:
        """int64 (k,), where an edge is among those that were given."""
        return self.ids[:, 4]

    def __len__(self) -> int:
        """Return k."""
        return len(self.ids)

    def take(self, index: Tensor | slice) -> "EdgeRows":
        """Return some of the edges."""
        return EdgeRows(self.ids[index], None if self.label is None else self.label[index])

    def and_(self, more: "EdgeRows") -> "EdgeRows":
        """Return these and more."""
        label = self.label
        if label is not None and more.label is not None:
            label = torch.cat([label, more.label])
        return EdgeRows(torch.cat([self.ids, more.ids]), label)

    def send(self, ptr: list[int], transport: Transport) -> "EdgeRows":
        """Collective. Send edges, grouped by receiving rank; return those that came."""
        ids, _ = send_counted(self.ids, ptr, transport)
        label = None if self.label is None else send_counted(self.label, ptr, transport)[0]
        return EdgeRows(ids, label)


@dataclass(frozen=True, eq=False)
class EdgeShare:
    """A rank's part of one batch.

    Attributes:
        edges: In the order of the batch; there may be none.
        place: int64 (k,), where in the whole batch each of them is.
        batch_size: Edges of the batch, of all ranks.
    """

    edges: EdgeRows
    place: Tensor
    batch_size: int


class EdgeBatches:
    """Collective. The edges of all ranks, put into the same batches for any number of ranks.

    An order of all edges is drawn by their original ids. It is found by sorting a range of the
    drawn numbers on each rank, so that no rank holds more than its share of the edges. Each rank
    takes equally many edges of a batch, give or take one: its own as far as they go, then others'.

    Args:
        edges: Those of this rank.
        plan: How batches are made. Without `shuffle` one order is drawn for all epochs.
        transport: The ranks.

    Raises:
        ConfigError: On every rank: there are no edges, or too few for one batch.
    """

    def __init__(self, edges: EdgeRows, plan: BatchPlan, transport: Transport) -> None:
        self.plan, self._edges, self._transport = plan, edges, transport
        count = torch.tensor([len(edges)])
        transport.all_reduce(count).wait()
        self.num_edges = int(count)
        plan.check_enough(self.num_edges, "edges")

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.plan.num_batches(self.num_edges)

    def epoch(self, epoch: int) -> Iterator[EdgeShare]:
        """Collective. Yield this rank's part of each batch of an epoch."""
        place = self._places(epoch if self.plan.shuffle else 0)
        order = place.argsort()
        place = place[order]
        for first in range(0, len(self), BATCHES_AT_ONCE):
            batches = range(first, min(first + BATCHES_AT_ONCE, len(self)))
            bounds = torch.tensor([batches.start, batches.stop]) * self.plan.batch_size
            begin, end = torch.searchsorted(place, bounds).tolist()
            some = self._edges.take(order[begin:end])
            yield from self._dealt(some, place[begin:end], batches)

    def _places(self, epoch: int) -> Tensor:
        """Collective. Return int64 (k,): where in the epoch's order each edge of this rank is."""
        size = self._transport.world_size
        drawn = uniform_by_id(DrawKey(self.plan.seed, epoch, ORDER_SITE), self._edges.draw_id)
        bits = (drawn * 2.0**PLACE_BITS).long()
        to = (drawn * size).long().clamp_(max=size - 1)
        order = to.argsort(stable=True)
        ptr = [0, *torch.bincount(to, minlength=size).cumsum(0).tolist()]
        keys = torch.stack([bits, self._edges.draw_id], 1)[order]
        came, came_ptr = send_counted(keys, ptr, self._transport)
        counts = torch.zeros(size, dtype=torch.int64)
        counts[self._transport.rank] = len(came)
        self._transport.all_reduce(counts).wait()
        # By the number drawn, and of equal ones by the id it was drawn by.
        ascending = came[:, 1].argsort(stable=True)
        ascending = ascending[came[ascending, 0].argsort(stable=True)]
        place = torch.empty_like(ascending)
        before = int(counts[: self._transport.rank].sum())
        place[ascending] = before + torch.arange(len(place))
        back = torch.empty_like(order)
        self._transport.exchange(place, came_ptr, back, ptr, 0).wait()
        out = torch.empty_like(back)
        out[order] = back
        return out

    def _dealt(self, edges: EdgeRows, place: Tensor, batches: range) -> Iterator[EdgeShare]:
        """Collective. Move what a rank has too much of; yield its part of some batches."""
        transport, size = self._transport, self._transport.world_size
        batch = place // self.plan.batch_size - batches.start
        counts = torch.zeros(size, len(batches), dtype=torch.int64)
        counts[transport.rank] = torch.bincount(batch, minlength=len(batches))
        transport.all_reduce(counts).wait()
        total = counts.sum(0)
        to = _takers(counts, transport.rank)
        stays = to == transport.rank
        moved = (~stays).nonzero().squeeze(1)
        moved = moved[to[moved].argsort(stable=True)]
        ptr = [0, *torch.bincount(to[moved], minlength=size).cumsum(0).tolist()]
        came = edges.take(moved).send(ptr, transport)
        came_place, _ = send_counted(place[moved], ptr, transport)
        edges, place = edges.take(stays).and_(came), torch.cat([place[stays], came_place])
        order = place.argsort()
        edges, place = edges.take(order), place[order]
        starts = torch.arange(batches.start, batches.stop + 1) * self.plan.batch_size
        ends = torch.searchsorted(place, starts).tolist()
        for i, start in enumerate(starts[:-1].tolist()):
            part = slice(ends[i], ends[i + 1])
            yield EdgeShare(edges.take(part), place[part] - start, int(total[i]))


def _takers(counts: Tensor, rank: int) -> Tensor:
    """Return int64 (k,), who takes each of a rank's edges, which are ordered by batch.

    Args:
        counts: int64 (world_size, batches), edges that each rank has of each batch.
        rank: This one.
    """
    size = len(counts)
    total = counts.sum(0)
    quota = total // size + (torch.arange(size)[:, None] < total % size)
    spare, missing = (counts - quota).clamp(min=0), (quota - counts).clamp(min=0)
    mine, kept = counts[rank], torch.minimum(counts[rank], quota[rank])
    batch = torch.arange(counts.size(1)).repeat_interleave(mine)
    index = torch.arange(len(batch)) - (mine.cumsum(0) - mine)[batch]
    to = torch.full_like(batch, rank)
    extra = (index >= kept[batch]).nonzero().squeeze(1)
    # What all ranks have too much of is numbered, and so is what is missing.
    before = spare[:rank].sum(0)
    unit = before[batch[extra]] + index[extra] - kept[batch[extra]]
    to[extra] = (missing.cumsum(0)[:, batch[extra]] <= unit).sum(0)
    return to
