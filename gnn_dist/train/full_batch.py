"""Full-batch training: one step is one pass over all shards."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.halo.block import Block, Constant
from gnn_dist.halo.clock import Clock
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.load import take_features
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.halo.prune import active_layers
from gnn_dist.nn.conv import Rows
from gnn_dist.nn.dropout import set_step
from gnn_dist.nn.models import GNN
from gnn_dist.profile.meter import GRAD_SYNC
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.shard import Shard
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.ready import ReadySteps, exact_blocks, shard_blocks
from gnn_dist.train.steps import StepReport, TrainingSet

__all__ = ["FullBatch", "StepReport", "TrainingSet", "exact_blocks", "shard_blocks"]


MakerOf = Callable[..., ExchangeMaker]


@dataclass(frozen=True, eq=False)
class TrainingPass:
    """What a step runs over, and which of its outputs count.

    Attributes:
        features: Rows of the first layer.
        blocks: One per layer.
        y: Labels of the last layer's destinations.
        mask: bool, which of them are training nodes.
    """

    features: Rows
    blocks: list[Block]
    y: Tensor
    mask: Tensor


def whole_pass(
    training: TrainingSet,
    make: MakerOf,
    halo: HaloPolicy,
    exact: list[Block],
    transport: Transport,
) -> TrainingPass:
    """Return the pass over all nodes of a training set.

    Args:
        training: The shard, and its labels and masks.
        make: Makes an `ExchangeMaker` of a plan and a policy.
        halo: The policy.
        exact: Blocks for exact passes over the same shard, one per layer.
        transport: The ranks; of use to `active_pass` alone.
    """
    del transport
    shard, task = training.shard, training.task
    exchanges = make(shard.plan, policy=halo)
    blocks = shard_blocks(shard, exchanges, exact[0].constant, layers=len(exact))
    return TrainingPass(shard.required_features, blocks, task.y, task.masks["train"])


def active_pass(
    training: TrainingSet,
    make: MakerOf,
    halo: HaloPolicy,
    exact: list[Block],
    transport: Transport,
) -> TrainingPass:
    """Collective. Return the pass over the nodes that the loss depends on; see `whole_pass`."""
    shard, task = training.shard, training.task
    active = active_layers(
        shard.structure,
        shard.plan,
        task.masks["train"],
        layers=len(exact),
        transport=transport,
    )
    features = take_features(shard.required_features, active.inputs)
    constant = None
    if isinstance(features, Tensor):
        constant = Constant(features, make(active.plans[0], policy=halo.for_evaluation).at(0))
    blocks = [
        Block(structure, make(plan, policy=halo).at(layer), constant if layer == 0 else None)
        for layer, (structure, plan) in enumerate(zip(active.structures, active.plans, strict=True))
    ]
    outputs = active.outputs
    return TrainingPass(features, blocks, task.y[outputs], torch.ones_like(outputs).bool())


class FullBatch(ReadySteps):
    """Steps of a model over all nodes at once. See `ReadySteps` for the arguments.

    Attributes:
        exchanges: What makes those of training, which may hold rows from step to step.
    """

    def __init__(
        self,
        model: GNN,
        shard: Shard,
        world: World,
        *,
        training: TrainingSet,
        halo: HaloPolicy,
        seed: int,
        gradients: GradientSync | None = None,
    ) -> None:
        super().__init__(
            model, shard, world, training=training, halo=halo, seed=seed, gradients=gradients
        )
        self.clock = Clock(seed)
        is_whole = training.shard is shard
        same = self._exact_blocks if is_whole else self._blocks_of(training.shard)
        pass_of = active_pass if training.prune else whole_pass
        self._train = pass_of(training, self._exchanges_of, halo, same, world.transport)

    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Update the parameters once; return the loss of all ranks."""
        self.model.train()
        set_step(self.model, seed=self.seed, step=epoch)
        self.clock.begin(epoch)
        loss = self._loss()
        self.gradients.begin(loss.detach())  # gradients are views of one buffer, set to zero
        loss.backward()  # type: ignore[no-untyped-call]
        with self.meter.timed(GRAD_SYNC):
            total = self.gradients.finish()
        self._update(optimizer, total, epoch)
        return total

    def _loss(self) -> Tensor:
        """Collective. Return this rank's share; logits do not outlive it but for the backward."""
        train = self._train
        logits = self._logits(train.features, train.blocks)
        return self._share(logits, train.y, train.mask)

    def _exchanges_of(self, plan: HaloPlan, *, policy: HaloPolicy) -> ExchangeMaker:
        """Return what makes exchanges of training on a plan."""
        made = ExchangeMaker(plan, self.world.transport, policy, clock=self.clock, meter=self.meter)
        self.exchanges.append(made)
        return made
