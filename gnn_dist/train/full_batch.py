"""Full-batch training: one step is one pass over all shards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from gnn_dist.profile.meter import GRAD_SYNC, Meter
from gnn_dist.shard.plan import HaloPlan
from gnn_dist.shard.shard import Shard
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.halo_files import Keeper
from gnn_dist.train.steps import StepReport, Steps, TrainingSet

__all__ = ["FullBatch", "StepReport", "TrainingSet", "exact_blocks", "shard_blocks"]


def shard_blocks(
    shard: Shard, exchanges: ExchangeMaker, constant: Constant | None, *, layers: int
) -> list[Block]:
    """Return the blocks of a model of some layers on a shard: one structure, an exchange each.

    Args:
        shard: The shard.
        exchanges: Makes its exchanges.
        constant: Rows of the first layer that are the same in every step.
        layers: How many.
    """
    return [
        Block(shard.structure, exchanges.at(layer), constant if layer == 0 else None)
        for layer in range(layers)
    ]


def exact_blocks(
    shard: Shard,
    transport: Transport,
    *,
    layers: int,
    halo: HaloPolicy | str = "overlap",
    meter: Meter | None = None,
) -> list[Block]:
    """Return the blocks of a model whose features, as rows of the first layer, are constant.

    Args:
        shard: The shard.
        transport: The ranks.
        layers: How many.
        halo: An exact policy.
        meter: Where bytes and waiting are counted.
    """
    exchanges = ExchangeMaker(shard.plan, transport, halo, meter=meter)
    features = shard.features
    constant = Constant(features, exchanges.at(0)) if isinstance(features, Tensor) else None
    return shard_blocks(shard, exchanges, constant, layers=layers)


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


class FullBatch(Steps):
    """Steps and predictions of a model over the shards of all ranks.

    Args:
        model: Takes `(features, blocks)`.
        shard: This rank's shard, which predictions are made on. With features in bfloat16, layers
            compute in it by autocast.
        world: The ranks.
        halo: The halo policy of training. Predictions, and what is made of features once, are
            exact.
        training: What steps are made on.
        seed: Of dropout, and of what the halo policy draws.
        gradients: How the parameters' gradients are summed; by default exactly, in one message.

    Attributes:
        meter: Counts what a step does, from its beginning.
        exchanges: What makes those of training, which may hold rows from step to step.
        gradients: Sums those of the parameters, and may send a part of them in later steps.
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
        super().__init__(model, shard, world, training=training)
        self.model: GNN = model
        self.seed, self.clock = seed, Clock(seed)
        exact = partial(
            exact_blocks,
            transport=world.transport,
            layers=model.num_blocks,
            halo=halo.for_evaluation,
            meter=self.meter,  # reset before a step: of its constant rows it counts the first time
        )
        self._exact_blocks = exact(shard)
        same = self._exact_blocks if training.shard is shard else exact(training.shard)
        pass_of = active_pass if training.prune else whole_pass
        self._train = pass_of(training, self._exchanges_of, halo, same, world.transport)
        self.gradients = gradients or GradientSync(model, world.transport)

    @property
    def layers(self) -> range:
        """One for each convolution."""
        return range(self.model.num_blocks)

    @property
    def keepers(self) -> list[Keeper]:
        """Exchanges, and what of gradients is still to be sent."""
        return [*self.exchanges, self.gradients]

    def _differentiate(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Set the parameters' gradients; return the loss of all ranks."""
        del optimizer  # gradients are views of one buffer, which is set to zero
        self.model.train()
        set_step(self.model, seed=self.seed, step=epoch)
        self.clock.begin(epoch)
        loss = self._loss()
        self.gradients.begin(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        with self.meter.timed(GRAD_SYNC):
            return self.gradients.finish()

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Collective. Return logits (n, C) of the owned nodes, exactly, without dropout."""
        self.model.eval()
        out = self._logits(self.shard.required_features, self._exact_blocks)
        return out.to(torch.promote_types(out.dtype, torch.float32))

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

    def _logits(self, features: Rows, blocks: list[Block]) -> Tensor:
        """Collective. Return the model's output for owned nodes, in 16 bits where rows are."""
        half = features.dtype == torch.bfloat16  # then products and their rows are, too
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=half):
            out: Tensor = self.model(features, blocks)
        # Other clones of a vertex-cut have the same output as the roots, and must not count.
        return out[: blocks[-1].num_owned]
