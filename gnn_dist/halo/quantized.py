"""Rows in few bits an element on the wire, rounded at random, right on average.

    row on the wire     4 bytes of parameters | bits * F / 8 bytes of levels     ops/quantize.py

Error feedback keeps, for each row sent, what rounding has left out so far, and adds it to the row
of the next step: e <- x + e - sent. What a reader has received by then adds up to what it should
have, but for one step's rounding, and so a row that hardly changes arrives almost exactly on the
average of some steps.

Source: 1-bit SGD's error feedback, "1-Bit Stochastic Gradient Descent and its Application to
Data-Parallel Distributed Training of Speech DNNs" (Seide et al., Interspeech 2014).
"""

from typing import Any

import torch
from torch import Tensor

from gnn_dist.halo.route import Route
from gnn_dist.halo.wire import Codec, PlainRows, Wire, is_coded, num_cols
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.quantize import dequantize_rows, packed_width, quantize_rows
from gnn_dist.ops.rows import gather_rows

__all__ = ["QuantizedRows", "draw_ids"]


def draw_ids(route: Route) -> Tensor:
    """Return int64 (s,), what the draws of each row sent go by.

    Values go by node: all readers receive the same. Gradients of a node that several readers send
    back go by (node, reader): their errors are independent, and so partly cancel in the sum.
    """
    return route.send_id if route.to_readers else route.send_key


class QuantizedRows(Codec):
    """Rows in some bits an element, unless they are narrower as they are.

    Args:
        bits: 8, 4, 2 or 1.
        feedback: Whether rounding errors are kept and sent later. Every row then travels in every
            step.
    """

    def __init__(self, bits: int, *, feedback: bool = False) -> None:
        self.bits, self.feedback = bits, feedback
        self._residual: Tensor | None = None  # (s, F), of the rows sent
        self._ids: Tensor | None = None  # int64 (s,), which rows these are

    def encode(self, rows: Tensor, route: Route, key: DrawKey) -> Wire:
        """Return the chosen rows, packed."""
        if not self._packs(rows):
            return PlainRows().encode(rows, route, key)
        if self.feedback:
            return Wire(self._with_feedback(rows, route, key), route.send_ptr)
        packed = quantize_rows(
            rows, draw_ids(route), key=key, bits=self.bits, index=route.send_index
        )
        return Wire(packed, route.send_ptr)

    def buffer(self, like: Tensor, route: Route) -> Wire:
        """Return room for packed rows."""
        if not self._packs(like):
            return PlainRows().buffer(like, route)
        shape = (route.num_received, packed_width(num_cols(like), self.bits))
        return Wire(like.new_empty(shape, dtype=torch.uint8), route.recv_ptr)

    def decode(self, wire: Wire, like: Tensor) -> Tensor:
        """Return the rows in their own dtype."""
        if not self._packs(like):
            return wire.data
        rows = dequantize_rows(wire.data, num_cols=num_cols(like), bits=self.bits, dtype=like.dtype)
        return rows.view(len(rows), *like.shape[1:])

    def state_dict(self) -> dict[str, Any]:
        """Return the residual, by which a resumed run sends what this one would."""
        if self._residual is None or self._ids is None:
            return {}
        return {"residual": self._residual.clone(), "ids": self._ids.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the residual; other rows than those it is of are refused when they are sent.

        Raises:
            ValueError: The state is not that of a codec with feedback.
        """
        unknown = set(state) - ({"residual", "ids"} if self.feedback else set())
        if unknown:
            raise ValueError(f"{self!r} has no state of the names {', '.join(sorted(unknown))}")
        self._residual, self._ids = (
            state[name].clone() if name in state else None for name in ("residual", "ids")
        )

    def __repr__(self) -> str:
        return f"QuantizedRows({self.bits}, feedback={self.feedback})"

    def _packs(self, rows: Tensor) -> bool:
        return is_coded(rows, packed_width(num_cols(rows), self.bits))

    def _with_feedback(self, rows: Tensor, route: Route, key: DrawKey) -> Tensor:
        """Pack the chosen rows with what earlier steps left out, and keep what this one does."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        index = route.send_index
        due = rows.to(wide, copy=True) if index is None else gather_rows(rows, index, wide)
        due = due.reshape(route.num_sent, num_cols(rows))
        if self._residual is not None:
            self._check_rows(route, due)
            due += self._residual.to(due)
        packed = quantize_rows(due, draw_ids(route), key=key, bits=self.bits)
        # As its receiver decodes it: rounded to the dtype of the rows.
        sent = dequantize_rows(packed, num_cols=due.size(1), bits=self.bits, dtype=rows.dtype)
        self._residual, self._ids = due.sub_(sent.to(wide)), route.send_id
        return packed

    def _check_rows(self, route: Route, due: Tensor) -> None:
        """Raise ValueError unless these are the rows that the residual is of."""
        of_rows = 0 if self._residual is None else self._residual.size(1)
        same = self._ids is route.send_id or (
            self._ids is not None and torch.equal(self._ids, route.send_id)
        )
        if not same or of_rows != due.size(1):
            raise ValueError(
                "feedback adds what a row has lost to the same row of the next step, but the rows "
                f"are others now ({due.size(0)} of {due.size(1)} elements): every row must travel "
                "in every step, and a state be of the same exchange"
            )
