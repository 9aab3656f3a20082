"""What all ways of training a ready model have in common: exact predictions, gradients."""

from functools import partial

import torch
from torch import Tensor

from gnn_dist.comm.transport import Transport
from gnn_dist.comm.world import World
from gnn_dist.halo.block import Block, Constant
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.conv import Rows
from gnn_dist.nn.models import GNN
from gnn_dist.profile.meter import Meter
from gnn_dist.shard.shard import Shard
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.halo_files import Keeper
from gnn_dist.train.steps import Steps, TrainingSet

__all__ = ["ReadySteps", "exact_blocks", "shard_blocks"]


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


class ReadySteps(Steps):
    """Steps and predictions of a ready model over the shards of all ranks.

    Args:
        model: Takes `(features, blocks)`.
        shard: This rank's shard, which predictions are made on. With features in bfloat16, layers
            compute in it by autocast.
        world: The ranks.
        halo: The halo policy of training. Predictions, and what is made of features once, are
            exact.
        training: What steps are made on.
        seed: Of dropout, and of all other draws.
        gradients: How the parameters' gradients are summed; by default exactly, in one message.

    Attributes:
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
        self.seed, self.halo = seed, halo
        self._blocks_of = partial(
            exact_blocks,
            transport=world.transport,
            layers=model.num_blocks,
            halo=halo.for_evaluation,
            meter=self.meter,  # reset before a step: of its constant rows it counts the first time
        )
        self._exact_blocks = self._blocks_of(shard)
        self.gradients = gradients or GradientSync(model, world.transport)

    @property
    def layers(self) -> range:
        """One for each convolution."""
        return range(self.model.num_blocks)

    @property
    def keepers(self) -> list[Keeper]:
        """Exchanges, and what of gradients is still to be sent."""
        return [*self.exchanges, self.gradients]

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Collective. Return logits (n, C) of the owned nodes, exactly, without dropout."""
        self.model.eval()
        out = self._logits(self.shard.required_features, self._exact_blocks)
        return out.to(torch.promote_types(out.dtype, torch.float32))

    def _logits(self, features: Rows, blocks: list[Block]) -> Tensor:
        """Collective. Return the model's output for owned nodes, in 16 bits where rows are."""
        half = features.dtype == torch.bfloat16  # then products and their rows are, too
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=half):
            out: Tensor = self.model(features, blocks)
        # Other clones of a vertex-cut have the same output as the roots, and must not count.
        return out[: blocks[-1].num_owned]
