"""What a bucket of gradients is on the wire."""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from gnn_dist.comm.transport import MAX_CHANNEL, Handle, Transport
from gnn_dist.errors import ConfigError, nearest

__all__ = ["ENCODINGS", "GradientWire", "make_wire"]

GRADIENT_CHANNEL = MAX_CHANNEL  # buckets follow each other on it, in the same order everywhere


class GradientWire(Protocol):
    """Sums a range of the gradients over the ranks."""

    def start(self, buffer: Tensor, start: int, stop: int, number: Tensor | None) -> list[Handle]:
        """Collective. Begin to sum `buffer[start:stop]` in place.

        With the last range goes a number, the element of the buffer that follows it, exactly.
        Waiting for all handles completes it.
        """

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is still to be sent."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""


class ExactWire:
    """Gradients as they are; the number, the buffer's last element, in the last bucket's message.

    Args:
        transport: The ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, buffer: Tensor, start: int, stop: int, number: Tensor | None) -> list[Handle]:
        """Collective. Begin to sum a range in place."""
        if number is not None:
            stop += 1
        return [self._transport.all_reduce(buffer[start:stop])]

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: everything is sent."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take nothing."""


class HalfWire:
    """Sums in bfloat16: half the bytes of float32, 8 bits of precision.

    Args:
        transport: The ranks.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, buffer: Tensor, start: int, stop: int, number: Tensor | None) -> list[Handle]:
        """Collective. Begin to sum a range, rounded."""
        half = buffer[start:stop].to(torch.bfloat16)
        handles = [_Then(self._transport.all_reduce(half), lambda: buffer[start:stop].copy_(half))]
        return [*handles, *_exactly(number, self._transport)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return nothing: what rounding takes away is not sent later."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take nothing."""


class LargestWire:
    """The largest elements of each bucket alone; the rest is added to the next step's gradients.

    Every rank sends its choice to every other, k pairs of index and value, and adds all of them in
    the order of ranks, so all ranks hold equal sums.

    Args:
        transport: The ranks.
        size: Elements of all gradients.
        share: Of a bucket's elements that are sent, in (0, 1].

    Source: error feedback as in "Sparsified SGD with Memory" (Stich, Cordonnier, Jaggi), arXiv
    1809.07599.
    """

    def __init__(self, transport: Transport, size: int, share: float) -> None:
        self._transport, self._share = transport, share
        self._rest = torch.zeros(size, device=transport.device)

    def start(self, buffer: Tensor, start: int, stop: int, number: Tensor | None) -> list[Handle]:
        """Collective. Begin to exchange the largest elements of a range."""
        ranks = self._transport.world_size
        self._rest = self._rest.to(buffer.dtype)
        rest, target = self._rest[start:stop], buffer[start:stop]
        rest += target
        count = min(len(rest), math.ceil(self._share * len(rest)))
        index = rest.abs().topk(count, sorted=False).indices
        mine = torch.cat([index.int().view(torch.uint8), rest[index].view(torch.uint8)])
        rest[index] = 0.0
        ptr = range(0, (ranks + 1) * len(mine), max(1, len(mine))) if count else [0] * (ranks + 1)
        received = torch.empty(ranks * len(mine), dtype=torch.uint8, device=mine.device)
        handle = self._transport.exchange(mine.repeat(ranks), ptr, received, ptr, GRADIENT_CHANNEL)

        def add() -> None:
            target.zero_()
            for pairs in received.view(ranks, -1):
                values = pairs[4 * count :].clone().view(target.dtype)
                target.index_add_(0, pairs[: 4 * count].clone().view(torch.int32), values)

        return [_Then(handle, add), *_exactly(number, self._transport)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is still to be sent."""
        return {"rest": self._rest}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a state of the same rank."""
        self._rest = state["rest"].to(self._transport.device, copy=True)


class _Then:
    """An operation after which something is done once."""

    def __init__(self, handle: Handle, then: Callable[[], object]) -> None:
        self._handle, self._then = handle, then
        self._complete = False

    @property
    def completed_s(self) -> float | None:
        """When the operation was seen to be complete."""
        return self._handle.completed_s

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait, then do it."""
        self._handle.wait(timeout_s)
        if not self._complete:
            self._complete = True
            self._then()

    def done(self) -> bool:
        """Return whether `wait` would not block."""
        return self._handle.done()


def _exactly(number: Tensor | None, transport: Transport) -> list[Handle]:
    """Collective. Begin to sum a number, if there is one."""
    return [] if number is None else [transport.all_reduce(number)]


ENCODINGS = ("exact", "bf16", "topk")


def make_wire(encoding: str, transport: Transport, size: int, *, share: float) -> GradientWire:
    """Return what sends gradients in an encoding of `ENCODINGS`.

    Raises:
        ConfigError: There is no such encoding, or `share` does not lie in (0, 1].
    """
    if encoding == "exact":
        return ExactWire(transport)
    if encoding == "bf16":
        return HalfWire(transport)
    if encoding != "topk":
        raise ConfigError(
            f"no gradient encoding {encoding!r}: {nearest(encoding, list(ENCODINGS))}"
        )
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"the share of gradients sent must lie in (0, 1], got {share}")
    return LargestWire(transport, size, share)
