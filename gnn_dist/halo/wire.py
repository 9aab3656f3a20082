"""Rows as they travel, and what turns rows into that and back."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gnn_dist.halo.route import Route
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.rows import gather_rows, new_rows_like

__all__ = ["Codec", "PlainRows", "Wire", "is_coded", "num_cols"]

# What codecs encode. Integers, and floats narrower still, travel as they are.
CODED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Wire:
    """Encoded rows, or room for them.

    Attributes:
        data: Contiguous (k, ...): rows, or bytes of rows of several widths.
        ptr: (world_size + 1,); data[ptr[q]:ptr[q + 1]] is for, or from, rank q.
        bits: Of an element of each rank's rows, where that differs; else empty.
    """

    data: Tensor
    ptr: tuple[int, ...]
    bits: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.data.numel() * self.data.element_size()


class Codec(Protocol):
    """Encodes rows of one exchange and decodes those that arrive.

    All ranks exchange rows of one width and dtype, so `like`, the rows that this rank sends, says
    what it receives.
    """

    def encode(self, rows: Tensor, route: Route, key: DrawKey) -> Wire:
        """Return what is sent; collective for a codec that agrees on something with other ranks.

        Args:
            rows: (n, ...), what the route's `send_index` refers to.
            route: Which of them go where.
            key: Of draws, the step's own.
        """

    def buffer(self, like: Tensor, route: Route) -> Wire:
        """Return room for what arrives, in the layout of the last `encode`."""

    def decode(self, wire: Wire, like: Tensor) -> Tensor:
        """Return the rows (r, ...) that arrived."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; nothing for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` returned for this route.

        Raises:
            ValueError: It is of another route, or of another codec.
        """
        if state:
            raise ValueError(f"{type(self).__name__} has no state, got {', '.join(state)}")


@dataclass(frozen=True)
class PlainRows(Codec):
    """Rows as they are."""

    def encode(self, rows: Tensor, route: Route, key: DrawKey) -> Wire:
        """Return the chosen rows."""
        del key
        index = route.send_index
        data = rows.contiguous() if index is None else gather_rows(rows, index)
        return Wire(data, route.send_ptr)

    def buffer(self, like: Tensor, route: Route) -> Wire:
        """Return room for rows."""
        return Wire(new_rows_like(like, route.num_received), route.recv_ptr)

    def decode(self, wire: Wire, like: Tensor) -> Tensor:
        """Return the rows."""
        del like
        return wire.data


def num_cols(rows: Tensor) -> int:
    """Return the elements of one of rows (n, ...)."""
    return rows.shape[1:].numel()


def is_coded(rows: Tensor, row_bytes: int) -> bool:
    """Return whether rows that take some bytes when encoded should be: all ranks find alike."""
    return rows.dtype in CODED and row_bytes < num_cols(rows) * rows.element_size()
