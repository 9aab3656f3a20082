"""Minibatch training: an update for each batch of seeds."""

import inspect
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import GNN
from gnn_dist.ops.draws import DrawKey
from gnn_dist.profile.meter import BATCH_WAIT, GRAD_SYNC
from gnn_dist.sampling.batch import Batch
from gnn_dist.sampling.loader import NodeLoader
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.own_model import EDGE_ARGUMENTS, OwnModel
from gnn_dist.train.ready import ReadySteps
from gnn_dist.train.steps import Steps, TrainingSet

__all__ = ["MiniBatch", "OwnMiniBatch", "ReadyBatchSteps", "adds_up", "loader_of"]


class BatchSteps(Steps):
    """What minibatch training of all kinds of models shares.

    A batch's loss is the sum over its seeds, of all ranks, divided by their number. So parameters
    are the same for any number of ranks, but for rounding.

    Attributes:
        loader: Makes the batches.
        gradients: Sums those of the parameters.
    """

    loader: NodeLoader
    gradients: GradientSync

    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Update the parameters for each batch; return the mean loss of all seeds."""
        self.loader.counts.reset()
        total, seeds, waited = 0.0, 0, 0.0
        self.model.train()
        for batch in self.loader.batches(epoch):
            self.meter.add(BATCH_WAIT, self.loader.wait_s - waited)
            waited = self.loader.wait_s
            loss = self._loss(batch)
            self.gradients.begin(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
            with self.meter.timed(GRAD_SYNC):
                mean = self.gradients.finish()
            self._update(optimizer, mean, epoch)
            total += mean * batch.size
            seeds += batch.size
        self._fetched = self.loader.counts
        return total / seeds

    def _loss(self, batch: Batch) -> Tensor:
        """Collective the first time. Return this rank's share of a batch's loss."""
        if batch.x is None or batch.y is None:
            raise ConfigError("training needs features and labels")
        logits = self._outputs_of(batch, batch.x)
        every = torch.ones(batch.batch_size, dtype=torch.bool, device=logits.device)
        return self._share(logits, batch.y, every, batch.size)

    @abstractmethod
    def _outputs_of(self, batch: Batch, x: Tensor) -> Tensor:
        """Return the model's output (k, ...) for a batch's seeds."""


class ReadyBatchSteps(BatchSteps, ReadySteps):
    """Minibatch training of a ready model: layers run on blocks, and draw by the batch's number."""

    def _outputs_of(self, batch: Batch, x: Tensor) -> Tensor:
        set_step(self.model, seed=self.seed, step=batch.step)
        return self._logits(x, batch.blocks)


def loader_of(
    shard: Shard, seeds: Tensor, world: World, config: TrainConfig, **more: bool
) -> NodeLoader:
    """Collective. Return what makes a run's batches.

    Args:
        shard: What is trained on.
        seeds: bool (n,), its training nodes.
        world: The ranks.
        config: How batches are made.
        more: Further options of the loader.
    """
    return NodeLoader(
        shard,
        world,
        config.fanout(),
        batch_size=config.batch_size,
        input_nodes=seeds,
        drop_last=config.drop_last,
        replace=config.replace,
        seed=config.seed,
        bulk=config.bulk,
        ahead=config.prefetch,
        cache_bytes=config.cache_bytes(),
        storage=config.storage,
        topology=config.topology,
        **more,
    )


def adds_up(config: TrainConfig) -> bool:
    """Return whether the layers of a ready model add up over in-edges."""
    return config.model in ("gcn", "gin") or config.aggr == "sum"


class MiniBatch(ReadyBatchSteps):
    """Minibatch training of a ready model. See `ReadySteps` for the other arguments.

    Args:
        config: How batches are made.
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
            halo=HaloPolicy.parse(config.halo),
            seed=config.seed,
            gradients=gradients,
        )
        seeds, sums = training.task.masks["train"], adds_up(config)
        self.loader = loader_of(
            training.shard, seeds, world, config, sums=sums, shares=config.batch_norm
        )


class OwnMiniBatch(BatchSteps, OwnModel):
    """Minibatch training of a module of the user's own, over each batch as one graph.

    It is called as `OwnModel` calls it, on the nodes and edges that were drawn (see `Subgraph`);
    its first rows are the seeds'. Draws of its own, such as dropout's, and statistics, such as
    batch norm's, are of this rank alone. Predictions are made by the parallelized module.

    Args:
        model: The module; it is used, not copied.
        shard: This rank's shard, which predictions are made on.
        world: The ranks.
        training: What steps are made on.
        config: How batches are made.
    """

    def __init__(
        self,
        model: nn.Module,
        shard: Shard,
        world: World,
        *,
        training: TrainingSet,
        config: TrainConfig,
    ) -> None:
        super().__init__(model, shard, world, training=training, halo=config.halo, seed=config.seed)
        self._seed = config.seed
        self.gradients = GradientSync(model, world.transport)
        self._arguments = set(inspect.signature(model.forward).parameters) & set(EDGE_ARGUMENTS)
        seeds, has_edges = training.task.masks["train"], bool(self._arguments)
        self.loader = loader_of(
            training.shard, seeds, world, config, sums=False, shares=False, edge_data=has_edges
        )

    def _outputs_of(self, batch: Batch, x: Tensor) -> Tensor:
        graph = batch.subgraph
        edges = {
            name: rows.to(x.dtype) if rows.is_floating_point() else rows
            for name, rows in graph.edges.items()
            if name in self._arguments
        }
        rows = x.index_select(0, graph.rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(DrawKey(self._seed, batch.step, self.world.rank).value)
            out: Tensor = self.model(rows, graph.edge_index, **edges)
        return out[: batch.batch_size]
