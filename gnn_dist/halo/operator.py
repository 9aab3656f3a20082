"""The linear map of an aggregation: columns that are here, and halo columns as they arrive."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from gnn_dist.halo.ahead import Ahead
from gnn_dist.halo.exchange import LayerExchange
from gnn_dist.halo.pieces import piece_bounds
from gnn_dist.ops.csr import CSR, SubCSR
from gnn_dist.ops.rows import new_rows_like

__all__ = ["Columns", "Halves", "Operator"]


class Columns(NamedTuple):
    """A range of halo columns.

    Attributes:
        begin: The first, counted from the first halo column.
        end: Behind the last.
        half: Their entries.
        src: (end - begin,) factors, or None.
    """

    begin: int
    end: int
    half: SubCSR
    src: Tensor | None


class Halves(NamedTuple):
    """Columns that are here, and those that arrive.

    Attributes:
        here: Entries of the columns that are here.
        src: Their factors, or None.
        halo: The other columns, ascending.
    """

    here: SubCSR
    src: Tensor | None
    halo: list[Columns]

    def within(self, begin: int, end: int, rows: Tensor) -> Iterator[tuple[Columns, Tensor]]:
        """Yield ranges of halo columns that have entries, with their rows.

        Args:
            begin: First halo column of a piece.
            end: Behind its last.
            rows: (end - begin, ...), its rows.
        """
        for columns in self.halo:
            if begin <= columns.begin and columns.end <= end and columns.half.csr.nnz:
                yield columns, rows[columns.begin - begin : columns.end - begin]

    def made(self, begin: int, end: int, like: Tensor, make: Callable[[Columns], Tensor]) -> Tensor:
        """Return rows (end - begin, ...) of a piece of the halo, like others, made by ranges."""
        ranges = [c for c in self.halo if begin <= c.begin and c.end <= end]
        if len(ranges) == 1:
            return make(ranges[0])
        rows = new_rows_like(like, end - begin)
        for columns in ranges:
            rows[columns.begin - begin : columns.end - begin] = make(columns)
        return rows


class Operator(NamedTuple):
    """The linear map of an aggregation, without its differentiable weight.

    Attributes:
        csr: Destinations and all sources.
        exchange: Brings sources beyond the destinations; None where they are here.
        symmetric: Over all ranks, every edge has its reverse, as often and with equal weight.
        src: (num_src,) factors of sources, or None.
        dst: (num_dst,) factors of destinations, or None; where all ranks' are known, (num_src,).
        ahead: Has posted the rows, and waits for their gradients; None: the sum does.
    """

    csr: CSR
    exchange: LayerExchange | None
    symmetric: bool
    src: Tensor | None
    dst: Tensor | None
    ahead: Ahead | None = None

    def halves(self, like: Tensor, weight: Tensor | None) -> Halves:
        """Return the columns, cut as the halo of such rows arrives.

        Args:
            like: Rows (n, ...).
            weight: Of the entries; where there is one, ranges know the positions of theirs.

        Raises:
            ConfigError: On every rank: a policy's buffer is too small for such rows.
        """
        exchange, src = self.exchange, self.src
        if exchange is None:
            return Halves(SubCSR(self.csr, None), src, [])
        begin, bounds = exchange.plan.num_owned, piece_bounds(exchange, like)
        if begin == self.csr.num_cols:
            return Halves(SubCSR(self.csr, None), src, [])
        if exchange.in_pieces:
            cuts = [begin + bound for bound in bounds]
            (_, _, here), *cut = self.csr.column_blocks(cuts, positions=weight is not None)
        else:
            here, half = self.csr.split_columns(begin)
            cut = [(begin, self.csr.num_cols, half)]
        halo = [
            Columns(first - begin, last - begin, half, None if src is None else src[first:last])
            for first, last, half in cut
        ]
        return Halves(here, None if src is None else src[:begin], halo)

    @property
    def own_dst(self) -> Tensor | None:
        """(num_dst,) factors of destinations, or None."""
        return None if self.dst is None else self.dst[: self.csr.num_rows]
