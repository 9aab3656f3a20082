"""What a row is on the wire."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.ops.draws import DrawKey
from gnn_dist.ops.rows import gather_rows, new_rows_like

__all__ = ["CastRows", "Codec", "PlainRows", "make_codec"]


class Codec(Protocol):
    """Encodes rows of one exchange and decodes those that arrive.

    All ranks exchange rows of one width and dtype, so `like`, the rows that this rank sends, says
    what it receives.
    """

    def encode(self, rows: Tensor, index: Tensor | None, ids: Tensor, key: DrawKey) -> Tensor:
        """Return what is sent, (s, ...), contiguous.

        Args:
            rows: (n, ...), rows to choose from.
            index: int64 (s,), which of them; None for all.
            ids: int64 (s,), their original ids.
            key: Of draws, the step's own.
        """

    def buffer(self, like: Tensor, num_rows: int) -> Tensor:
        """Return memory for encoded rows (num_rows, ...)."""

    def decode(self, wire: Tensor, like: Tensor) -> Tensor:
        """Return the rows (r, ...) that were encoded as `wire`."""


@dataclass(frozen=True)
class PlainRows:
    """Rows as they are."""

    def encode(self, rows: Tensor, index: Tensor | None, ids: Tensor, key: DrawKey) -> Tensor:
        """Return the chosen rows."""
        del ids, key
        return rows.contiguous() if index is None else gather_rows(rows, index)

    def buffer(self, like: Tensor, num_rows: int) -> Tensor:
        """Return memory for rows."""
        return new_rows_like(like, num_rows)

    def decode(self, wire: Tensor, like: Tensor) -> Tensor:
        """Return the rows."""
        del like
        return wire


@dataclass(frozen=True)
class CastRows:
    """Rows in another floating-point dtype, where that is narrower than theirs.

    Attributes:
        dtype: The dtype on the wire.
    """

    dtype: torch.dtype

    def encode(self, rows: Tensor, index: Tensor | None, ids: Tensor, key: DrawKey) -> Tensor:
        """Return the chosen rows, rounded to nearest."""
        del ids, key
        dtype = self._wire_dtype(rows)
        if index is None:
            return rows.to(dtype).contiguous()
        return gather_rows(rows, index, dtype)

    def buffer(self, like: Tensor, num_rows: int) -> Tensor:
        """Return memory for rows."""
        return like.new_empty((num_rows, *like.shape[1:]), dtype=self._wire_dtype(like))

    def decode(self, wire: Tensor, like: Tensor) -> Tensor:
        """Return the rows in their own dtype."""
        return wire.to(like.dtype)

    def _wire_dtype(self, rows: Tensor) -> torch.dtype:
        narrower = rows.is_floating_point() and rows.element_size() > self.dtype.itemsize
        return self.dtype if narrower else rows.dtype


def make_codec(policy: HaloPolicy) -> Codec:
    """Return the codec of one exchange under a policy."""
    names = {"bf16": torch.bfloat16, "fp16": torch.float16}
    if policy.encode is None:
        return PlainRows()
    return CastRows(names[policy.encode.name])
