"""What each rank of `train` and `evaluate` does; loads torch."""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gnn_dist.cli.tables import text_table
from gnn_dist.comm.world import World
from gnn_dist.halo.load import load_shard
from gnn_dist.train.checkpoint import BEST, read_checkpoint
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.trainer import Trainer, load_model

__all__ = ["evaluate", "train"]


def train(config: TrainConfig, prepare: Callable[[int], Path]) -> int:
    """Collective. Train and print the summary.

    Args:
        config: The options of the run.
        prepare: Returns the partition folder for a number of ranks, made now if need be; called
            on rank 0 only.
    """
    with World.from_env(config.backend, timeout_s=config.timeout) as world:
        folder = _agree_on_folder(prepare, world)
        spill = config.spill or None
        shard = load_shard(folder, world, verify=config.verify, spill=spill)
        summary = Trainer(config, shard, world, dataset=os.path.abspath(folder)).fit()
        if world.is_main:
            name = summary["metric_name"]
            val, test, seconds = (
                _number(summary[key])
                for key in ("val_metric_at_best", "test_metric_at_best", "epoch_s_median")
            )
            print(
                f"best epoch {summary['best_epoch']}: val {name} {val}, test {name} {test}; "
                f"{seconds} s an epoch on {world.world_size} ranks; run folder "
                f"{summary['run_folder']}"
            )
    return 0


def evaluate(config: TrainConfig, folder: str, run: str, *, as_json: bool) -> int:
    """Collective. Load a run's best model, evaluate it and print the metric of every split."""
    with World.from_env(config.backend, timeout_s=config.timeout) as world:
        shard = load_shard(folder, world, verify=config.verify)
        trainer = Trainer(config, shard, world)
        load_model(trainer.model, read_checkpoint(run, world, BEST), shard, world)
        scores = trainer.evaluate()
        if world.is_main and as_json:
            finite = {split: v if math.isfinite(v) else None for split, v in scores.items()}
            print(json.dumps({"metric": trainer.metric, **finite}))
        elif world.is_main:
            rows = [(split, _number(value)) for split, value in scores.items()]
            print(text_table(("split", trainer.metric), rows))
        sys.stdout.flush()
    return 0


def _number(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "n/a"


def _agree_on_folder(prepare: Callable[[int], Path], world: World) -> Path:
    """Collective. Have rank 0 find or make the partition folder, and tell the others."""
    folder = ""
    with world.everywhere("preparing the partition folder"):
        if world.is_main:
            folder = str(prepare(world.world_size))
    return Path(world.transport.all_gather_object(folder)[0])
