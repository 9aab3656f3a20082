"""Which seeds make up each batch of an epoch, and which rank takes which of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError
from gnn_dist.ops.draws import DrawKey, uniform_by_id

__all__ = ["BatchPlan", "SeedBatches", "SeedShare"]

ORDER_SITE = 1 << 22  # apart from the sites of models, splits and hops


@dataclass(frozen=True)
class BatchPlan:
    """How seeds are put into batches.

    Attributes:
        batch_size: Seeds of a batch, of all ranks together.
        shuffle: In an order drawn for each epoch; otherwise by original id.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        seed: Of the order.

    Raises:
        ConfigError: The batch size is not positive.
    """

    batch_size: int
    shuffle: bool = True
    drop_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")

    def num_batches(self, num_seeds: int) -> int:
        """Return how many batches an epoch has."""
        whole, rest = divmod(num_seeds, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def check_enough(self, number: int, what: str) -> None:
        """Refuse to make batches of nothing.

        Args:
            number: Of seeds on all ranks.
            what: What they are, for messages.

        Raises:
            ConfigError: There are none, or too few for one batch.
        """
        if number == 0:
            raise ConfigError(f"no rank has {what}: there is nothing to start from")
        if self.num_batches(number) == 0:
            raise ConfigError(
                f"there are {number} {what} on all ranks, too few for a batch of "
                f"{self.batch_size}: lower batch_size, or do not drop the last batch"
            )


@dataclass(frozen=True, eq=False)
class SeedShare:
    """A rank's part of one batch.

    Attributes:
        ids: int64 (k,), their numbers (see `Topology`); k may be 0.
        position: int64 (k,), where in the order of all seeds by original id each one is.
        batch_size: Seeds of the batch, of all ranks.
    """

    ids: Tensor
    position: Tensor
    batch_size: int


class SeedBatches:
    """Collective. The seeds of all ranks, put into the same batches for any number of ranks.

    A batch is a set of seeds of the whole graph. A rank takes those that it owns, as long as the
    batch's cost is spread evenly; what exceeds a rank's share goes to ranks that have less. So all
    ranks have the same number of batches, and every seed is in one batch of an epoch.

    Every rank holds 20 bytes a seed.

    Args:
        seeds: int64 (k,), local ids of owned nodes.
        node_id: int64 (n,), original ids of owned nodes.
        first: Number of the first owned node.
        cost: float32 (k,), what a seed is expected to cost, in any unit.
        plan: How batches are made.
        transport: The ranks.

    Raises:
        ConfigError: On every rank: there are no seeds, or too few for one batch.
    """

    def __init__(
        self,
        seeds: Tensor,
        *,
        node_id: Tensor,
        first: int,
        cost: Tensor,
        plan: BatchPlan,
        transport: Transport,
    ) -> None:
        self.plan, self._rank, self._num_ranks = plan, transport.rank, transport.world_size
        mine = (node_id[seeds].numpy(), (seeds + first).numpy(), cost.float().numpy())
        gathered = transport.all_gather_object(mine)
        original, number, costs = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        owner = np.repeat(np.arange(len(gathered)), [len(part[0]) for part in gathered])
        order = np.argsort(original, kind="stable")
        self._original = torch.from_numpy(original[order])
        self._number: NDArray[np.int64] = number[order]
        self._owner: NDArray[np.int32] = owner[order].astype(np.int32)
        self._cost: NDArray[np.float32] = costs[order]
        self.num_seeds = len(order)
        plan.check_enough(self.num_seeds, "seeds")

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self.plan.num_batches(self.num_seeds)

    def epoch(self, epoch: int) -> Iterator[SeedShare]:
        """Yield this rank's part of each batch of an epoch."""
        order = self._order(epoch)
        for batch in range(len(self)):
            chosen = order[batch * self.plan.batch_size : (batch + 1) * self.plan.batch_size]
            mine = chosen[self._takers(chosen) == self._rank]
            yield SeedShare(
                torch.from_numpy(self._number[mine]), torch.from_numpy(mine), len(chosen)
            )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self.plan.shuffle:
            return np.arange(self.num_seeds)
        place = uniform_by_id(DrawKey(self.plan.seed, epoch, ORDER_SITE), self._original)
        return torch.argsort(place, stable=True).numpy()

    def _takers(self, chosen: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return (k,), the rank that takes each seed of a batch."""
        takers = self._owner[chosen]
        if self._num_ranks == 1:
            return takers
        cost = self._cost[chosen].astype(np.float64)
        share = cost.sum() / self._num_ranks
        load = np.zeros(self._num_ranks)
        spare = []
        for rank in range(self._num_ranks):
            own = np.flatnonzero(takers == rank)
            stays = np.cumsum(cost[own]) <= share
            load[rank] = cost[own][stays].sum()
            spare.append(own[~stays])
        moved = np.concatenate(spare)
        # The dearest first, each to the rank that has least.
        for i in moved[np.argsort(-cost[moved], kind="stable")]:
            rank = int(load.argmin())
            takers[i] = rank
            load[rank] += cost[i]
        return takers
