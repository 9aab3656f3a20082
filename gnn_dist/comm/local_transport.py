"""The transport of a single rank: no library, no sockets, nothing ever in flight."""

from typing import NoReturn

import torch
from torch import Tensor

from gnn_dist.comm.base import BaseTransport
from gnn_dist.comm.control import Control
from gnn_dist.comm.messages import ByteExchange, Reduction
from gnn_dist.comm.transport import Handle
from gnn_dist.errors import CommError

__all__ = ["LocalTransport"]


class LocalTransport(BaseTransport):
    """One rank that exchanges with itself.

    Args:
        control: The control channel; a new one without connection by default.
        world_rank: The rank in the world that was started.
        device: Where tensors lie.

    Example:
        >>> rows, copy = torch.arange(3), torch.zeros(3, dtype=torch.int64)
        >>> LocalTransport().exchange(rows, [0, 2], copy, [1, 3], channel=0).wait()
        >>> copy.tolist()
        [0, 0, 1]
    """

    def __init__(
        self,
        control: Control | None = None,
        *,
        world_rank: int = 0,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(
            "local", 0, world_ranks=(world_rank,), control=control or Control(world_rank)
        )
        self._device = device or torch.device("cpu")

    @property
    def device(self) -> torch.device:
        """Where tensors for this transport must lie."""
        return self._device

    def _subgroup(self, members: list[int], name: str) -> "LocalTransport":
        return LocalTransport(self.control, world_rank=self.world_ranks[0], device=self._device)

    def _start(self, exchange: ByteExchange, channel: int) -> Handle:
        return self._nothing_to_do()

    def _reduce(self, reduction: Reduction) -> Handle:
        return self._nothing_to_do()

    def _broadcast(self, data: Tensor, root: int) -> Handle:
        return self._nothing_to_do()

    def _nothing_to_do(self) -> NoReturn:
        raise CommError("a single rank has nobody to communicate with")
