"""Which way of making steps a configuration asks for."""

from torch import nn

from gnn_dist.comm.world import World
from gnn_dist.halo.load import induced_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.models import GNN
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.full_batch import FullBatch
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.local_sgd import LocalSGD
from gnn_dist.train.mini_batch import MiniBatch, OwnMiniBatch
from gnn_dist.train.models import make_model, place_model
from gnn_dist.train.own_model import OwnModel
from gnn_dist.train.steps import Steps, TrainingSet
from gnn_dist.train.task import NodeTask

__all__ = ["make_steps"]


def make_steps(
    config: TrainConfig, shard: Shard, world: World, task: NodeTask, own: nn.Module | None
) -> Steps:
    """Collective. Return what makes the steps of a run.

    Args:
        config: The options.
        shard: This rank's shard.
        world: The ranks.
        task: Its labels and masks.
        own: A model of the user's own; None for the ready one that `config` names.
    """
    training = _training_set(config, shard, world, task)
    if own is not None:
        place_model(own, config, world)
        if config.mode == "minibatch":
            return OwnMiniBatch(own, shard, world, training=training, config=config)
        return OwnModel(own, shard, world, training=training, halo=config.halo, seed=config.seed)
    model: GNN = make_model(config, shard, task, world)
    if config.average_every():
        return LocalSGD(model, shard, world, training=training, config=config)
    gradients = GradientSync(
        model,
        world.transport,
        buckets=config.grad_buckets,
        encoding=config.grad_encoding,
        share=config.grad_share,
    )
    if config.mode == "minibatch":
        return MiniBatch(model, shard, world, training=training, config=config, gradients=gradients)
    return FullBatch(
        model,
        shard,
        world,
        training=training,
        halo=HaloPolicy.parse(config.halo),
        seed=config.seed,
        gradients=gradients,
    )


def _training_set(config: TrainConfig, shard: Shard, world: World, task: NodeTask) -> TrainingSet:
    """Collective. Return what is trained on: the subgraph of training nodes if inductive."""
    if not config.inductive:
        return TrainingSet(shard, task, config.prune)
    keep = task.masks["train"]
    return TrainingSet(induced_shard(shard, keep, world.transport), task.take(keep), config.prune)
