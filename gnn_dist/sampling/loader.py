"""Minibatches of nodes: seeds, what was drawn around them, and their rows, made ahead of use."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.sampling.batch import Batch
from gnn_dist.sampling.loading import Loader, LoaderOptions
from gnn_dist.sampling.neighbor import Fanout, Sample
from gnn_dist.sampling.seeds import BatchPlan, SeedBatches, SeedShare
from gnn_dist.sampling.store import FeatureStore, Fetched
from gnn_dist.sampling.topology import topology_of
from gnn_dist.shard.shard import Shard

__all__ = ["LoaderOptions", "NodeLoader"]

LABEL_CHANNEL = 2


class NodeLoader(Loader[SeedShare, Batch]):
    """Collective. Batches of seeds with the neighbours drawn around them.

    Iterating once is one epoch, which is collective too: every rank gets as many batches, some of
    them perhaps without seeds of its own. Batches, and what is drawn, are the same for any number
    of ranks.

    Args:
        shard: This rank's shard.
        world: The ranks.
        num_neighbors: For each layer, that next to the seeds first; -1 for all neighbours.
        batch_size: Seeds of a batch, of all ranks together.
        input_nodes: bool (n,) or int64 local ids: owned nodes to start from; None for all.
        options: Fields of `LoaderOptions`.

    Raises:
        ConfigError: On every rank: nothing to start from, or an option that cannot be.

    Example:
        >>> import gnn_dist as gd
        >>> # for batch in loader: loss = f(model(batch.x, batch.blocks), batch.y) / batch.size
    """

    def __init__(
        self,
        shard: Shard,
        world: World,
        num_neighbors: Sequence[int],
        *,
        batch_size: int,
        input_nodes: Tensor | None = None,
        **options: Any,  # noqa: ANN401 - any field of LoaderOptions
    ) -> None:
        chosen = LoaderOptions(**options)
        plan = BatchPlan(batch_size, chosen.shuffle, chosen.drop_last, chosen.seed)
        super().__init__(world, num_neighbors, chosen)
        topology = topology_of(shard, self._transport)
        with world.everywhere("choosing seeds"):
            seeds = _local_ids(input_nodes, shard.num_owned)
        self.seeds = SeedBatches(
            seeds,
            node_id=shard.node_id,
            first=int(topology.rank_ptr[world.rank]),
            cost=expected_cost(topology.csr.counts[seeds], self.fanout),
            plan=plan,
            transport=self._transport,
        )
        chance = torch.zeros(shard.num_owned, dtype=torch.float64)
        chance[seeds] = min(1.0, batch_size / self.seeds.num_seeds)
        self._draw_from(shard, topology, chance)
        labels = {} if shard.y is None else {"y": shard.y}
        self._labels = FeatureStore(
            labels, topology.rank_ptr, self._transport, channel=LABEL_CHANNEL
        )

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.seeds)

    def _shares(self, epoch: int) -> Iterator[SeedShare]:
        return self.seeds.epoch(epoch)

    def _bulk(self, shares: list[SeedShare], step: int) -> Iterator[Batch]:
        steps = range(step, step + len(shares))
        samples = self._sampler.sample([share.ids for share in shares], steps)
        found = self._store.locate([sample.n_id for sample in samples])
        labels = self._labels.locate([share.ids for share in shares])
        for i, share in enumerate(shares):
            yield self._batch(share, samples[i], found[i], labels[i], steps[i])

    def _batch(
        self, share: SeedShare, sample: Sample, rows: Fetched, labels: Fetched, step: int
    ) -> Batch:
        return Batch(
            **self._gathered(sample, rows)._asdict(),
            step=step,
            y=self._labels.take(labels, "y") if "y" in self._labels.tables else None,
            input_id=share.position,
            size=share.batch_size,
        )


def expected_cost(degree: Tensor, fanout: Fanout) -> Tensor:
    """Return float32 (k,): in proportion to the edges that seeds of these in-degrees bring.

    What is drawn beyond the first hop is taken to be alike for every neighbour.
    """
    first, *others = fanout.num_neighbors
    drawn = degree.double()
    mean = float(drawn.mean()) if len(drawn) else 0.0
    if first >= 0:
        drawn = torch.full_like(drawn, first) if fanout.replace else drawn.clamp(max=first)
    behind = 1.0
    for k in reversed(others):
        behind = 1.0 + (k if k >= 0 else mean) * behind
    return (1.0 + drawn * behind).float()


def _local_ids(nodes: Tensor | None, num_owned: int) -> Tensor:
    """Return int64 (k,), nodes to start from.

    Raises:
        ConfigError: They are no owned nodes, or repeat.
    """
    if nodes is None:
        return torch.arange(num_owned)
    if nodes.dtype == torch.bool:
        if nodes.shape != (num_owned,):
            raise ConfigError(
                f"input_nodes must be a mask of {num_owned} owned nodes, got {tuple(nodes.shape)}"
            )
        return nodes.nonzero().squeeze(1)
    ids = nodes.long()
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_owned:
        raise ConfigError(f"input_nodes must be local ids of {num_owned} owned nodes")
    if torch.bincount(ids, minlength=1).max() > 1:
        raise ConfigError("input_nodes must hold no node twice")
    return ids
