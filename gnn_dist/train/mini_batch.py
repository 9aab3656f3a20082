"""Minibatch training of ready models: an update for each batch of seeds."""

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import GNN
from gnn_dist.profile.meter import BATCH_WAIT, GRAD_SYNC
from gnn_dist.sampling.batch import Batch
from gnn_dist.sampling.loader import NodeLoader
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.ready import ReadySteps
from gnn_dist.train.steps import TrainingSet

__all__ = ["MiniBatch"]


class MiniBatch(ReadySteps):
    """Steps of a model over sampled batches. See `ReadySteps` for the other arguments.

    A batch's loss is the sum over its seeds, of all ranks, divided by their number. So parameters
    are the same for any number of ranks, but for rounding.

    Args:
        config: How batches are made.

    Attributes:
        loader: Makes the batches.
    """

    def __init__(
        self,
        model: GNN,
        shard: Shard,
        world: World,
        *,
        training: TrainingSet,
        config: TrainConfig,
        gradients: GradientSync | None = None,
    ) -> None:
        super().__init__(
            model,
            shard,
            world,
            training=training,
            halo=HaloPolicy.parse("overlap"),
            seed=config.seed,
            gradients=gradients,
        )
        self.loader = NodeLoader(
            training.shard,
            world,
            config.fanout(),
            batch_size=config.batch_size,
            input_nodes=training.task.masks["train"],
            drop_last=config.drop_last,
            replace=config.replace,
            seed=config.seed,
            bulk=config.bulk,
            ahead=config.prefetch,
            cache_bytes=config.cache_bytes(),
            sums=config.model in ("gcn", "gin") or config.aggr == "sum",
            shares=config.batch_norm,
        )

    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Update the parameters for each batch; return the loss of all seeds."""
        self.model.train()
        self.loader.counts.reset()
        total, seeds, waited = 0.0, 0, 0.0
        for batch in self.loader.batches(epoch):
            self.meter.add(BATCH_WAIT, self.loader.wait_s - waited)
            waited = self.loader.wait_s
            set_step(self.model, seed=self.seed, step=batch.step)
            loss = self._loss(batch)
            self.gradients.begin(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
            with self.meter.timed(GRAD_SYNC):
                mean = self.gradients.finish()
            self._update(optimizer, mean, epoch)
            total += mean * batch.size
            seeds += batch.size
        self._fetched_bytes = self.loader.counts.fetched_bytes
        return total / seeds

    def _loss(self, batch: Batch) -> Tensor:
        """Collective the first time. Return this rank's share of a batch's loss."""
        if batch.x is None or batch.y is None:
            raise ConfigError("training needs features and labels")
        logits = self._logits(batch.x, batch.blocks)
        every = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return self._share(logits, batch.y, every, batch.size)
