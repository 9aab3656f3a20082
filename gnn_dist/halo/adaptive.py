"""Rows in 2, 4 or 8 bits an element, more for ranks to which more would be lost.

    step 0      all rows in the one width that the budget allows
                packed rows tell their ranges --> table (ranks x ranks), gathered beside them
    step 1 ...  all ranks work out from the table how wide each pair's rows are

An exchange (a layer's values, or its gradients) has a budget of its own, a share of the bytes of
its rows in float32: variances of different layers, and of values and gradients, have no common
measure. Every rank spends it on its peers: starting from the narrowest width it takes, while bytes
are left, the step to the next width that lowers the sum of variances most for each byte.

Source: "AdaQP: Adaptive Message Quantization and Parallelization for Distributed Full-graph GNN
Training" (arXiv:2306.01381), section 4, whose solver of a mixed-integer program over groups of rows
is here a greedy choice over peers. The variance of an element that is rounded at random to levels
between which lies a step d is at most d^2 / 4.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnn_dist.comm.transport import Handle, Transport
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.quantized import draw_ids
from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import Codec, PlainRows, Wire, is_coded, num_cols
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.quantize import dequantize_rows_into, packed_width, quantize_rows_into, steps_of
from gnn_dist.ops.rows import new_rows_like

__all__ = ["TABLES", "WIDTHS", "AdaptiveRows", "assign_bits", "uniform_bits"]

WIDTHS = (2, 4, 8)
# Tables travel on channels of their own from here on, and not by a reduction: other reductions may
# be started in between, on each rank at another moment.
TABLES = 24_000


def uniform_bits(num_cols: int, budget: float) -> int:
    """Return the largest width of rows of some elements within a budget, or the smallest.

    Args:
        num_cols: F.
        budget: A share of the 4 F bytes of a row in float32.
    """
    fit = [bits for bits in WIDTHS if packed_width(num_cols, bits) <= budget * 4 * num_cols]
    return fit[-1] if fit else WIDTHS[0]


def assign_bits(
    squared_ranges: Sequence[float], num_rows: Sequence[int], *, num_cols: int, budget: float
) -> tuple[int, ...]:
    """Choose a width for the rows that one rank sends to each of its peers.

    Greedy, which is within one step of a width of the best: each step to a wider one gains less for
    a byte than the one before. O(peers log peers).

    Args:
        squared_ranges: For each peer the sum over rows of (largest - smallest element)^2.
        num_rows: For each peer.
        num_cols: F.
        budget: A share of the 4 F bytes of a row in float32. The narrowest width may exceed it.

    Returns:
        For each peer 2, 4 or 8.
    """
    bits = [WIDTHS[0]] * len(num_rows)
    left = sum(num_rows) * (budget * 4 * num_cols - packed_width(num_cols, WIDTHS[0]))
    steps = []
    for narrow, wide in pairwise(WIDTHS):
        gain = _variance(narrow) - _variance(wide)
        row_bytes = packed_width(num_cols, wide) - packed_width(num_cols, narrow)
        for peer, (squares, rows) in enumerate(zip(squared_ranges, num_rows, strict=True)):
            if rows > 0:
                cost = rows * row_bytes
                # By its place in the tuple a tie goes to the lower peer, on every rank.
                steps.append((-gain * squares / max(cost, 1), peer, narrow, wide, cost))
    for _, peer, narrow, wide, cost in sorted(steps):
        if bits[peer] == narrow and cost <= left:
            bits[peer], left = wide, left - cost
    return tuple(bits)


def _variance(bits: int) -> float:
    """Return the bound of the variance of an element of a row of range 1."""
    return 0.25 / float(2**bits - 1) ** 2


class _Measured(NamedTuple):
    """A table on its way: (senders, 2, receivers), squared ranges and rows; of rows of F."""

    handle: Handle
    table: Tensor
    num_cols: int
    step: int


class AdaptiveRows(Codec):
    """Rows in a width for each pair of ranks, assigned again every some steps.

    Args:
        budget: A share of the bytes of rows in float32.
        every: Steps between measurements.
        transport: Carries the table.
        channel: Of the exchange.
        clock: Of the run.
    """

    def __init__(
        self, budget: float, every: int, *, transport: Transport, channel: int, clock: Clock
    ) -> None:
        self._budget, self._every = budget, every
        self._transport, self._clock, self._channel = transport, clock, TABLES + channel
        # Of one step: one, or one for each use of the exchange or each rank that it goes to apart.
        self._measured: list[_Measured] = []
        self._period: int | None = None  # of `every` steps, in which ranges were measured last
        self._sent: tuple[int, ...] = ()  # bits for each receiver
        self._received: tuple[int, ...] = ()  # bits of each sender

    def encode(self, rows: Tensor, route: Route, key: DrawKey) -> Wire:
        """Collective. Return the chosen rows, packed; now and then, start to measure them."""
        if not self._packs(rows):
            return PlainRows().encode(rows, route, key)
        # Not within the step: what is exchanged again in it is the same again.
        if self._measured and self._measured[0].step != self._clock.step:
            self._assign()
        wire = self._room(rows, route.send_ptr, self._sent)
        ids, index = draw_ids(route), route.send_index
        for (a, b), bits, packed in _sections(wire, route.send_ptr, num_cols(rows)):
            chosen = rows[a:b] if index is None else rows
            part = None if index is None else index[a:b]
            quantize_rows_into(packed, chosen, ids[a:b], key=key, bits=bits, index=part)
        self._measure(wire, route.send_ptr, num_cols(rows))
        return wire

    def buffer(self, like: Tensor, route: Route) -> Wire:
        """Return room for packed rows."""
        if not self._packs(like):
            return PlainRows().buffer(like, route)
        return self._room(like, route.recv_ptr, self._received)

    def decode(self, wire: Wire, like: Tensor) -> Tensor:
        """Return the rows in their own dtype, once tables have arrived as well."""
        for measured in self._measured:
            measured.handle.wait()  # nothing of a step is on its way after its rows are here
        if not self._packs(like):
            return wire.data
        width = num_cols(like)
        counts = [
            (b - a) // packed_width(width, bits)
            for (a, b), bits in zip(pairwise(wire.ptr), wire.bits, strict=True)
        ]
        ptr = (0, *torch.tensor(counts).cumsum(0).tolist())
        rows = new_rows_like(like, ptr[-1])
        for (a, b), bits, packed in _sections(wire, ptr, width):
            dequantize_rows_into(rows[a:b], packed, bits=bits)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return the widths now in force and when they were measured."""
        self._assign()
        return {"sent": self._sent, "received": self._received, "period": self._period}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up widths.

        Raises:
            ValueError: They are of another number of ranks, or no widths.
        """
        unknown = set(state) - {"sent", "received", "period"}
        if unknown:
            raise ValueError(f"adaptive has no state of the names {', '.join(sorted(unknown))}")
        sent, received = tuple(state.get("sent", ())), tuple(state.get("received", ()))
        if {len(sent), len(received)} - {0, self._transport.world_size}:
            raise ValueError(
                f"widths are of {len(sent)} ranks, these are {self._transport.world_size}"
            )
        self._measured = []
        self._sent, self._received, self._period = sent, received, state.get("period")

    def _packs(self, rows: Tensor) -> bool:
        return is_coded(rows, packed_width(num_cols(rows), WIDTHS[0]))

    def _room(self, like: Tensor, row_ptr: tuple[int, ...], assigned: tuple[int, ...]) -> Wire:
        width = num_cols(like)
        bits = assigned or (uniform_bits(width, self._budget),) * (len(row_ptr) - 1)
        ptr = [0]
        for (a, b), of_rank in zip(pairwise(row_ptr), bits, strict=True):
            ptr.append(ptr[-1] + (b - a) * packed_width(width, of_rank))
        return Wire(like.new_empty(ptr[-1], dtype=torch.uint8), tuple(ptr), bits)

    def _measure(self, wire: Wire, row_ptr: tuple[int, ...], width: int) -> None:
        """Collective. In one step of a period, start to gather the table of ranges of all ranks."""
        period = self._clock.step // self._every
        if period == self._period and not self._measured:
            return
        self._period = period
        size = self._transport.world_size
        mine = torch.zeros(2, size, dtype=torch.float64)
        ranks = [q for q, (a, b) in enumerate(pairwise(row_ptr)) if a < b]
        for q, ((a, b), bits, packed) in zip(ranks, _sections(wire, row_ptr, width), strict=True):
            ranges = steps_of(packed).double().nan_to_num_(0.0) * (2**bits - 1)
            mine[0, q], mine[1, q] = ranges.square().sum(), b - a
        copies = mine.to(wire.data.device).expand(size, 2, size).contiguous()
        table, ptr = torch.empty_like(copies), range(size + 1)
        handle = self._transport.exchange(copies, ptr, table, ptr, self._channel)
        self._measured.append(_Measured(handle, table, width, self._clock.step))

    def _assign(self) -> None:
        """Wait for tables that are under way and work out the widths, the same on every rank."""
        if not self._measured:
            return
        measured, self._measured = self._measured, []
        for each in measured:
            each.handle.wait()
        table = torch.stack([each.table for each in measured]).sum(0)
        width = measured[0].num_cols
        by_sender = [
            assign_bits(squares, [int(n) for n in rows], num_cols=width, budget=self._budget)
            for squares, rows in table.tolist()
        ]
        rank = self._transport.rank
        self._sent = by_sender[rank]
        self._received = tuple(bits[rank] for bits in by_sender)


def _sections(
    wire: Wire, row_ptr: Sequence[int], width: int
) -> list[tuple[tuple[int, int], int, Tensor]]:
    """Return (its rows, its bits, its packed rows) for each rank that has rows."""
    return [
        (rows, bits, wire.data[a:b].view(rows[1] - rows[0], packed_width(width, bits)))
        for rows, (a, b), bits in zip(pairwise(row_ptr), pairwise(wire.ptr), wire.bits, strict=True)
        if rows[0] < rows[1]
    ]
