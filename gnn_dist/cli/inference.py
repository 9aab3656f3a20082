"""What each rank of `infer` does; loads torch."""

import os
import sys
from pathlib import Path

from torch import Tensor

from gnn_dist.cli.environment import InferOptions
from gnn_dist.comm.world import World
from gnn_dist.halo.load import load_shard
from gnn_dist.sizes import parse_size
from gnn_dist.train import layerwise
from gnn_dist.train.checkpoint import BEST, read_checkpoint
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.models import ROW_DTYPES, load_model, make_model
from gnn_dist.train.prediction_files import Origin, check_free, write_rows
from gnn_dist.train.task import make_task

__all__ = ["infer"]


def infer(config: TrainConfig, folder: str, *, run: str, spill: str, options: InferOptions) -> int:
    """Collective. Load a run's best model and write what it says of all nodes.

    Args:
        config: The options of the run.
        folder: Partition folder.
        run: Run folder.
        spill: As for `load_shard`; empty: features and structure are in memory.
        options: Where to, and how.
    """
    out = Path(options.out or run)
    names = ["predictions", *(["embeddings"] if options.embeddings else [])]
    memory = layerwise.LayerMemory(
        options.batch_size, parse_size(options.halo_memory), options.work or None
    )
    with World.from_env(config.backend, timeout_s=config.timeout) as world:
        with world.everywhere(f"looking at {out}"):
            if world.is_main:
                for name in names:
                    check_free(out / name, options.format, overwrite=options.overwrite)
        checkpoint = read_checkpoint(run, world, BEST)
        shard = load_shard(folder, world, verify=config.verify, spill=spill or None)
        task = make_task(shard, config.split, world, loss=config.loss, metric=config.metric)
        model = make_model(config, shard, task, world)
        load_model(model, checkpoint, shard, world)
        dtype = ROW_DTYPES[config.precision]
        inferred = layerwise.infer(model, shard, world, memory=memory, dtype=dtype)
        for name, rows in zip(names, inferred, strict=False):
            if not isinstance(rows, Tensor):
                continue  # a model of one layer, which is refused before
            embeds = name == "embeddings"
            origin = Origin(
                dataset=shard.meta.dataset,
                fingerprint=shard.meta.fingerprint,
                run=os.path.abspath(run),
                epoch=checkpoint.epoch,
                what=name if embeds else task.kind,
            )
            write_rows(
                out / name,
                rows,
                shard,
                world,
                file_format=options.format,
                origin=origin,
                task=None if embeds else task,
            )
            if world.is_main:
                print(f"{name} of {shard.meta.num_nodes:,} nodes: {out / name}")
        sys.stdout.flush()
    return 0
