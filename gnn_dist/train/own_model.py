"""Steps of a module that the user wrote for one machine, made parallel by `parallelize`."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.parallelize import Parallelized, parallelize
from gnn_dist.profile.meter import GRAD_SYNC
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.halo_files import Keeper
from gnn_dist.train.steps import Steps, TrainingSet

__all__ = ["OwnModel", "check_own_model", "model_inputs"]

EDGE_ARGUMENTS = ("edge_weight", "edge_attr", "edge_type")


class OwnModel(Steps):
    """Collective. Steps and predictions of a module of the user's own.

    It is called as `model(x, edge_index)`, and with `edge_weight`, `edge_attr` and `edge_type` by
    name where its forward has such an argument and the graph such data.

    Args:
        model: The module; it is used, not copied.
        shard: This rank's shard, which predictions are made on.
        world: The ranks.
        training: What steps are made on.
        halo: The halo policy of training.
        seed: Of the draws.
    """

    def __init__(
        self,
        model: nn.Module,
        shard: Shard,
        world: World,
        *,
        training: TrainingSet,
        halo: str,
        seed: int,
    ) -> None:
        super().__init__(model, shard, world, training=training)
        make = partial(parallelize, model, world=world, halo=halo, seed=seed, meter=self.meter)
        self._whole = make(shard)
        self._trained = self._whole if training.shard is shard else make(training.shard)
        self.exchanges = [self._trained.exchanges]

    @property
    def layers(self) -> list[int]:
        """One for each place where rows have been exchanged so far."""
        return self._trained.sites

    @property
    def keepers(self) -> list[Keeper]:
        """None: exchanges are made when the model first asks, so a resumed run warms up again."""
        return []

    @torch.no_grad()
    def predict(self) -> Tensor:
        """Collective. Return outputs (n, C) of the owned nodes, exactly, without dropout."""
        self._whole.eval()
        return self._outputs(self._whole, self.shard).detach()

    def _train_epoch(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Update the parameters once; return the loss of all ranks."""
        total = self._differentiate(optimizer, epoch)
        self._update(optimizer, total, epoch)
        return total

    def _differentiate(self, optimizer: Optimizer, epoch: int) -> float:
        """Collective. Set the parameters' gradients; return the loss of all ranks."""
        task = self.training.task
        self._trained.train()
        self._trained.step = epoch  # the forward draws by the next one
        optimizer.zero_grad(set_to_none=True)
        logits = self._outputs(self._trained, self.training.shard)
        loss = self._share(logits, task.y, task.masks["train"])
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach().double().view(1)
        with self.meter.timed(GRAD_SYNC):
            self.world.transport.all_reduce(total).wait()
        return float(total)

    def _outputs(self, model: Parallelized, shard: Shard) -> Tensor:
        args, kwargs = model_inputs(self.model, shard)
        out = model(*args, **kwargs)
        if not isinstance(out, Tensor) or out.dim() not in (1, 2) or len(out) != shard.num_owned:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"the model must return a row for each of {shard.num_owned} nodes, got {got}"
            )
        task = self.training.task
        width = out.size(1) if out.dim() == 2 else 1
        # More than there are classes is wasteful, and right: nobody is of those.
        fits = width >= task.num_classes if task.kind == "multiclass" else width == task.num_classes
        if isinstance(task.loss, str) and task.kind != "regression" and not fits:
            raise ConfigError(
                f"the model must return {task.num_classes} numbers for each node, one for each "
                f"class, got {width}"
            )
        return out


def model_inputs(model: nn.Module, shard: Shard) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Return what a module of the user's own is called with on a shard."""
    takes = inspect.signature(model.forward).parameters
    has = {"edge_weight": shard.edge_weight, **shard.edge_data}
    found = {name: has.get(name) for name in EDGE_ARGUMENTS if name in takes}
    edge = {
        name: values.to(shard.x.dtype) if values.is_floating_point() else values
        for name, values in found.items()
        if values is not None
    }
    return (shard.x, shard.edge_index), edge


def check_own_model(model: nn.Module, config: TrainConfig) -> None:
    """Refuse what is for ready models alone.

    Raises:
        ConfigError: The module is parallelized already, or an option does not apply to it.
    """
    if isinstance(model, Parallelized):
        raise ConfigError(
            "the trainer parallelizes a model itself, by its halo and seed, and got one that is "
            "parallelized: pass model.module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"the model {type(model).__name__} has no parameter to train")
    refused = {
        "precision": config.precision == "bf16",
        "prune": config.prune,
        "grad_buckets": config.grad_buckets != "one",
        "grad_encoding": config.grad_encoding != "exact",
        "sync": config.sync != "step",
    }
    for name, is_set in refused.items():
        if is_set:
            raise ConfigError(
                f"{name}={getattr(config, name)} is for the ready models, and "
                f"{type(model).__name__} is a model of your own: leave it out"
            )
