"""What a row is on the wire."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.halo.adaptive import AdaptiveRows
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.policy import Adaptive, HaloPolicy, Quantized
from gnn_dist.halo.quantized import QuantizedRows
from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import Codec, PlainRows, Wire, is_coded, num_cols
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.rows import gather_rows

__all__ = ["CastRows", "Codec", "PlainRows", "make_codec"]


@dataclass(frozen=True)
class CastRows(Codec):
    """Rows in another floating-point dtype, where that is narrower than theirs.

    Attributes:
        dtype: The dtype on the wire.
    """

    dtype: torch.dtype

    def encode(self, rows: Tensor, route: Route, key: DrawKey) -> Wire:
        """Return the chosen rows, rounded to nearest."""
        del key
        dtype, index = self._wire_dtype(rows), route.send_index
        data = rows.to(dtype).contiguous() if index is None else gather_rows(rows, index, dtype)
        return Wire(data, route.send_ptr)

    def buffer(self, like: Tensor, route: Route) -> Wire:
        """Return room for rows."""
        shape = (route.num_received, *like.shape[1:])
        return Wire(like.new_empty(shape, dtype=self._wire_dtype(like)), route.recv_ptr)

    def decode(self, wire: Wire, like: Tensor) -> Tensor:
        """Return the rows in their own dtype."""
        return wire.data.to(like.dtype)

    def _wire_dtype(self, rows: Tensor) -> torch.dtype:
        coded = is_coded(rows, num_cols(rows) * self.dtype.itemsize)
        return self.dtype if coded else rows.dtype


def make_codec(
    policy: HaloPolicy, *, gradients: bool, transport: Transport, channel: int, clock: Clock
) -> Codec:
    """Return the codec of one exchange under a policy.

    Args:
        policy: The policy.
        gradients: Whether the exchange carries gradients.
        transport: The ranks, for codecs that agree on something.
        channel: Of the exchange.
        clock: Of the run.
    """
    term = policy.encode
    if term is None:
        return PlainRows()
    if isinstance(term, Quantized):
        return QuantizedRows(term.bits_of(gradients=gradients), feedback=term.feedback)
    if isinstance(term, Adaptive):
        return AdaptiveRows(
            term.budget, term.every, transport=transport, channel=channel, clock=clock
        )
    return CastRows({"bf16": torch.bfloat16, "fp16": torch.float16}[term.name])
