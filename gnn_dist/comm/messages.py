"""Exchanges and reductions as a library will carry them out: bytes, offsets, wire dtypes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["ByteExchange", "Reduction", "as_bytes"]

LEAST_PIECE_BYTES = 256 << 10  # smaller ones would not use the network better


@dataclass(frozen=True)
class ByteExchange:
    """A checked exchange, as bytes.

    Attributes:
        send: uint8, flat. `recv` alike.
        send_ptr: Byte offsets, world_size + 1 long. `recv_ptr` alike.
        rank: The rank that exchanges; its own bytes are in here too.
    """

    send: Tensor
    send_ptr: list[int]
    recv: Tensor
    recv_ptr: list[int]
    rank: int

    def copy_own(self) -> None:
        """Copy the bytes that stay on this rank."""
        r = self.rank
        own = self.send[self.send_ptr[r] : self.send_ptr[r + 1]]
        if len(own):
            self.recv[self.recv_ptr[r] : self.recv_ptr[r + 1]].copy_(own)

    def receives(self, max_bytes: int, pieces: int = 1) -> Iterator[tuple[int, Tensor]]:
        """Yield (source rank, bytes), nearest rank first.

        Args:
            max_bytes: Of a piece.
            pieces: How many a message is cut into, unless they became too small or too large.
        """
        return self._messages(self.recv, self.recv_ptr, -1, (max_bytes, pieces))

    def sends(self, max_bytes: int, pieces: int = 1) -> Iterator[tuple[int, Tensor]]:
        """Yield (destination rank, bytes), nearest first.

        Args:
            max_bytes: Of a piece.
            pieces: How many a message is cut into, unless they became too small or too large.
        """
        return self._messages(self.send, self.send_ptr, 1, (max_bytes, pieces))

    def _messages(
        self, data: Tensor, ptr: list[int], step: int, cut: tuple[int, int]
    ) -> Iterator[tuple[int, Tensor]]:
        # Rank r sends to r + 1 while it receives from r - 1, and so on: no rank is everybody's
        # first destination.
        world_size = len(ptr) - 1
        max_bytes, pieces = cut
        for distance in range(1, world_size):
            peer = (self.rank + step * distance) % world_size
            begin, end = ptr[peer], ptr[peer + 1]
            # Of the size of the message alone, so that both ends cut alike.
            size = min(max_bytes, max(LEAST_PIECE_BYTES, -(-(end - begin) // pieces)))
            for start in range(begin, end, size):
                yield peer, data[start : min(start + size, end)]


@dataclass(frozen=True)
class Reduction:
    """An all-reduce as the library will do it.

    Attributes:
        wire: What is reduced in place.
        op: `sum`, `max` or `min`.
        target: The caller's tensor, to be overwritten with `wire` at the end, or None if `wire`
            is its memory.
    """

    wire: Tensor
    op: str
    target: Tensor | None

    def finish(self) -> None:
        """Bring the result to the caller's tensor."""
        if self.target is not None:
            self.target.copy_(self.wire)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's memory as flat uint8."""
    # A lone element counts as contiguous with any stride, which a view of bytes would refuse.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    # An empty view would be refused for some element sizes.
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
