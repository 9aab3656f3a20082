"""Rows of nodes for minibatches: those owned, those kept of other ranks', and those asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.ops.rows import gather_rows, gather_rows_into, new_rows_like
from gnn_dist.ops.sampling import relabel
from gnn_dist.sampling.requests import Requests

__all__ = ["FeatureStore", "Fetched", "StoreCounts"]


@dataclass
class StoreCounts:
    """What a store did since it was made or `reset`.

    Attributes:
        rows: Rows that batches asked for.
        remote_rows: Of them, those of other ranks.
        cached_rows: Of these, those that were kept here.
        fetched_rows: Rows that came from other ranks: each once for all batches of a call.
        fetched_bytes: Their size.
    """

    rows: int = 0
    remote_rows: int = 0
    cached_rows: int = 0
    fetched_rows: int = 0
    fetched_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the remote rows that were kept here; NaN if there were none."""
        return self.cached_rows / self.remote_rows if self.remote_rows else float("nan")

    def reset(self) -> None:
        """Count from zero."""
        self.__init__()  # type: ignore[misc]


class Part(NamedTuple):
    """Some of a batch's rows that lie in tables other than the own one.

    Attributes:
        at: int64 (r,), which of the batch's rows.
        row: int64 (r,), their rows of the tables.
        tables: By name.
    """

    at: Tensor
    row: Tensor
    tables: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Fetched:
    """Where the rows of one batch are.

    Attributes:
        owned_at: int64 (k,), row of the own table for each node; -1 for other ranks' nodes.
        remote: Where the rows of other ranks' nodes are: those kept, and those that came.
    """

    owned_at: Tensor
    remote: tuple[Part, ...] = ()


class FeatureStore:
    """Tables with a row for each node, of which a rank holds those of its own nodes.

    Args:
        tables: By name, (n, ...), rows of owned nodes, in memory or mapped from files. The same
            names, dtypes and widths on all ranks.
        rank_ptr: int64 (world_size + 1,), who owns which nodes.
        transport: The ranks.
        channel: Of the exchanges, which nobody else uses.

    Attributes:
        counts: What it did.
        tables: The rows of owned nodes.

    Raises:
        ConfigError: A table has not a row for each owned node.

    Example:
        >>> from gnn_dist.comm.world import World
        >>> world = World.single()
        >>> tables, rank_ptr = {"x": torch.arange(6.0).view(3, 2)}, torch.tensor([0, 3])
        >>> store = FeatureStore(tables, rank_ptr, world.transport, channel=0)
        >>> [rows] = store.locate([torch.tensor([2, 0])])
        >>> store.take(rows, "x").tolist()
        [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        tables: Mapping[str, Tensor],
        rank_ptr: Tensor,
        transport: Transport,
        *,
        channel: int,
    ) -> None:
        self.tables = dict(tables)
        self._rank_ptr, self._transport, self._channel = rank_ptr, transport, channel
        self._first, self._end = rank_ptr[[transport.rank, transport.rank + 1]].tolist()
        for name, table in self.tables.items():
            if len(table) != self._end - self._first:
                raise ConfigError(
                    f"table {name!r} must have a row for each of {self._end - self._first} owned "
                    f"nodes, got {len(table)}"
                )
        self.counts = StoreCounts()
        self._kept_id = rank_ptr.new_empty(0)
        self._kept = {name: table[:0] for name, table in self.tables.items()}

    @property
    def row_bytes(self) -> int:
        """Size of a row of all tables."""
        return sum(
            table.element_size() * table[0:0].new_empty((1, *table.shape[1:])).numel()
            for table in self.tables.values()
        )

    @property
    def num_kept(self) -> int:
        """How many rows of other ranks are kept."""
        return self._kept_id.numel()

    def keep(self, ids: Tensor) -> None:
        """Collective. Fetch rows of other ranks once and keep them, instead of those kept so far.

        Args:
            ids: int64 (c,), numbers of nodes, none twice; those of this rank are left out.
        """
        ids = ids[(ids < self._first) | (ids >= self._end)].sort().values
        self._kept = self._fetch(ids)
        self._kept_id = ids

    def locate(self, nodes: Sequence[Tensor]) -> list[Fetched]:
        """Collective. Bring the rows of some batches' nodes here; each row travels once.

        Args:
            nodes: For each batch int64 numbers of nodes.
        """
        counts = self.counts
        counts.rows += sum(ids.numel() for ids in nodes)
        if self._transport.world_size == 1:
            return [Fetched(ids) for ids in nodes]
        remotes = [((ids < self._first) | (ids >= self._end)).nonzero().squeeze(1) for ids in nodes]
        wanted = torch.cat([ids[at] for ids, at in zip(nodes, remotes, strict=True)])
        distinct, place = relabel(wanted[:0], wanted)
        row = self._find_kept(distinct)
        is_new = row < 0
        came = self._fetch(distinct[is_new])
        row[is_new] = torch.arange(int(is_new.sum()))
        is_kept, row = ~is_new[place.long()], row[place.long()]
        counts.remote_rows += wanted.numel()
        counts.cached_rows += int(is_kept.sum())
        found, begin = [], 0
        for ids, remote in zip(nodes, remotes, strict=True):
            owned_at = ids - self._first
            owned_at[remote] = -1
            mine = slice(begin, begin + remote.numel())
            kept, rows = is_kept[mine], row[mine]
            parts = (
                Part(remote[kept], rows[kept], self._kept),
                Part(remote[~kept], rows[~kept], came),
            )
            found.append(Fetched(owned_at, tuple(part for part in parts if part.at.numel())))
            begin += remote.numel()
        return found

    def take(self, found: Fetched, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a batch's rows (k, ...) of a table, as another floating dtype if asked."""
        table = self.tables[name]
        if not found.remote:
            return gather_rows(table, found.owned_at, dtype)
        like = table if dtype in (None, table.dtype) else table[:0].to(dtype)
        out = new_rows_like(like, found.owned_at.numel())
        if len(table):
            # Other ranks' rows are written over row 0, which is at hand.
            gather_rows_into(out, table, found.owned_at.clamp(min=0))
        for at, row, tables in found.remote:
            out[at] = gather_rows(tables[name], row, dtype)
        return out

    def _find_kept(self, ids: Tensor) -> Tensor:
        """Return int64: the number among the kept rows of each id, or -1."""
        if self.num_kept == 0:
            return torch.full_like(ids, -1)
        at = torch.searchsorted(self._kept_id, ids).clamp_(max=self.num_kept - 1)
        at[self._kept_id[at] != ids] = -1
        return at

    def _fetch(self, ids: Tensor) -> dict[str, Tensor]:
        """Collective. Return rows (k, ...) of each table, from their owners."""
        requests = Requests.send([ids], self._rank_ptr, self._transport, self._channel)
        rows = {
            name: requests.answer_rows(gather_rows(table, requests.incoming))
            for name, table in self.tables.items()
        }
        self.counts.fetched_rows += ids.numel()
        self.counts.fetched_bytes += sum(table.nbytes for table in rows.values())
        return rows
