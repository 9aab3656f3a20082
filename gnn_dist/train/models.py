"""Models at the start of a run: ready ones by configuration, the user's own, or a checkpoint's."""

import torch
from torch import Tensor, nn

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.collectives import broadcast_state
from gnn_dist.nn.models import GNN, ModelShape, build_model
from gnn_dist.parallel.table_state import own_state
from gnn_dist.shard.shard import Shard
from gnn_dist.train.checkpoint import Checkpoint
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.task import NodeTask

__all__ = ["ROW_DTYPES", "load_model", "make_model", "place_model"]

ROW_DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


def make_model(config: TrainConfig, shard: Shard, task: NodeTask, world: World) -> GNN:
    """Collective. Make the model a configuration names, with rank 0's initial parameters."""
    shape = ModelShape(
        in_channels=shard.meta.num_features,
        hidden=config.hidden,
        out_channels=task.num_classes,
        layers=config.layers,
        dropout=config.dropout,
        heads=config.heads,
        aggr=config.aggr,
        batch_norm=config.batch_norm,
    )
    # A local generator's state would not reach the initialisers of torch.nn.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = build_model(config.model, shape, world.transport)
    place_model(model, config, world)
    broadcast_state(model, world.transport)
    return model


def place_model(model: nn.Module, config: TrainConfig, world: World) -> None:
    """Move a model to the device of a rank, and its parameters to the precision of a run."""
    dtype = torch.promote_types(ROW_DTYPES[config.precision], torch.float32)

    def placed(tensor: Tensor) -> Tensor:
        # What is on the meta device, a table that is still to be drawn, is nowhere to be moved.
        to = tensor.device if tensor.is_meta else world.device
        return tensor.to(to, dtype if tensor.is_floating_point() else tensor.dtype)

    model._apply(placed)  # type: ignore[no-untyped-call]


def load_model(model: nn.Module, checkpoint: Checkpoint, shard: Shard, world: World) -> None:
    """Collective if the model has a table of nodes. Load a checkpoint's parameters.

    Raises:
        ConfigError: The checkpoint is of another graph, or of a model of another shape.
    """
    if checkpoint.fingerprint != shard.meta.fingerprint:
        raise ConfigError(
            f"the checkpoint is of another graph than {shard.meta.dataset!r}: give the folder that "
            "the run was started on, or another partition of the same graph"
        )
    try:
        model.load_state_dict(own_state(model, checkpoint.model, world))
    except RuntimeError as error:
        raise ConfigError(
            f"the checkpoint is of another model: {str(error).splitlines()[-1].strip()}"
        ) from error
