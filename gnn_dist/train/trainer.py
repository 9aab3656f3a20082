"""The training loop: steps, evaluation, early stopping, checkpoints, the run folder."""

import logging
import statistics
import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.collectives import broadcast_state
from gnn_dist.halo.load import induced_shard
from gnn_dist.halo.policy import HaloPolicy
from gnn_dist.nn.models import GNN, ModelShape, build_model
from gnn_dist.profile.meter import peak_rss_bytes
from gnn_dist.shard.shard import Shard
from gnn_dist.train.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.full_batch import FullBatch, StepReport, TrainingSet
from gnn_dist.train.gradients import GradientSync
from gnn_dist.train.halo_files import HaloFiles
from gnn_dist.train.halo_report import halo_rows, halo_table
from gnn_dist.train.metrics import evaluate_metric, metric_name
from gnn_dist.train.optim import make_optimizer, make_scheduler
from gnn_dist.train.run_folder import RunFolder
from gnn_dist.train.task import NodeTask, make_task

__all__ = ["Progress", "Trainer"]

LOG = logging.getLogger(__name__)
ROW_DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}
CHECKPOINT_S = 60.0  # at most between two checkpoints, whatever the number of epochs
LINES_PER_RUN = 20  # log lines of a run without a progress bar


@dataclass
class Progress:
    """How far a run has come, and its best evaluation so far.

    Attributes:
        epoch: Epochs done.
        best_epoch: The epoch whose validation metric was best, -1 before any.
        best_val: That metric.
        test_at_best: The test metric then.
        stale: Evaluations since then.
    """

    epoch: int = 0
    best_epoch: int = -1
    best_val: float = float("-inf")
    test_at_best: float = float("nan")
    stale: int = 0

    def update(self, epoch: int, scores: dict[str, float]) -> bool:
        """Take in an evaluation; return whether it is the best so far.

        Without validation nodes the last evaluation counts as the best.
        """
        val = scores["val"]
        if val != val or val > self.best_val:
            self.best_epoch, self.test_at_best, self.stale = epoch, scores["test"], 0
            self.best_val = val if val == val else self.best_val
            return True
        self.stale += 1
        return False


class Trainer:
    """Collective. One full-batch training run.

    Args:
        config: The options.
        shard: This rank's shard.
        world: The ranks.
        dataset: What the run is on, for the run folder.

    Raises:
        ConfigError: On every rank: an option does not fit the dataset.

    Attributes:
        model: The model; `state_dict` loads into `torch_geometric.nn`'s model of the same kind.
    """

    def __init__(self, config: TrainConfig, shard: Shard, world: World, dataset: str = "") -> None:
        self.config, self.world = config, world
        self.dataset = dataset or shard.meta.dataset
        self.shard = shard.with_dtype(ROW_DTYPES[config.precision])
        self.shard.required_features  # noqa: B018 - refuse a graph without features at once
        task = make_task(self.shard, config.split, world)
        self.metric = metric_name(config.metric, task)
        self.task = task
        self.model = make_model(config, self.shard, task, world)
        self.full_batch = FullBatch(
            self.model,
            self.shard,
            world,
            training=self._training_set(task),
            halo=HaloPolicy.parse(config.halo),
            seed=config.seed,
            gradients=GradientSync(
                self.model,
                world.transport,
                buckets=config.grad_buckets,
                encoding=config.grad_encoding,
                share=config.grad_share,
            ),
        )
        self.full_batch.meter.separates_skew = config.profile_skew
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self.scheduler = make_scheduler(self.optimizer, config, config.epochs)
        self.progress = Progress()
        self._halo_files = HaloFiles([*self.full_batch.exchanges, self.full_batch.gradients], world)
        self._saved_at = time.monotonic()
        if config.resume:
            self._restore(read_checkpoint(config.resume, world))
            self._halo_files.restore(Path(config.resume), self.progress.epoch)

    def fit(self) -> dict[str, Any]:
        """Collective. Train to the last epoch or until patience runs out; return the summary."""
        folder = self._open_folder()
        rows: list[dict[str, Any]] = []
        epochs = range(self.progress.epoch, self.config.epochs)
        self._save(folder, LAST)  # so that a run can be resumed from its first moment
        bar = tqdm(epochs, disable=None if folder else True, unit="epoch", leave=False)
        try:
            for epoch in bar:
                if 0 < self.config.patience <= self.progress.stale:
                    break
                row = self._epoch(epoch, folder)
                rows.append(row)
                self._report(row, bar)
            self._save(folder, LAST)
            self.full_batch.drain()
            summary = self._summary(rows)
            summary["run_folder"] = "" if folder is None else str(folder.path)
            if folder is not None:
                folder.finish(summary)
        finally:
            bar.close()
            if folder is not None:
                folder.close()
        return summary

    def evaluate(self) -> dict[str, float]:
        """Collective. Return the metric of every split with the present parameters."""
        return evaluate_metric(self.metric, self.full_batch.predict(), self.task, self.world)

    def _training_set(self, task: NodeTask) -> TrainingSet:
        """Collective. Return what is trained on: the subgraph of training nodes if inductive."""
        if not self.config.inductive:
            return TrainingSet(self.shard, task, self.config.prune)
        keep = task.masks["train"]
        shard = induced_shard(self.shard, keep, self.world.transport)
        masks = {name: mask[keep] for name, mask in task.masks.items()}
        return TrainingSet(shard, replace(task, y=task.y[keep], masks=masks), self.config.prune)

    def _epoch(self, epoch: int, folder: RunFolder | None) -> dict[str, Any]:
        report = self.full_batch.step(self.optimizer, epoch)
        self.scheduler.step()
        self.progress.epoch = epoch + 1
        scores = dict.fromkeys(self.task.masks, float("nan"))
        last = epoch + 1 == self.config.epochs
        if (epoch + 1) % self.config.eval_every == 0 or last:
            scores = self.evaluate()
            if self.progress.update(epoch, scores):
                self._save(folder, BEST)
        over_ranks, overdue = self._over_ranks(report)
        row = {
            "epoch": epoch,
            "loss": report.loss,
            **{f"{split}_metric": value for split, value in scores.items()},
            **over_ranks,
        }
        if folder is not None:
            folder.add(row)
        if (epoch + 1) % self.config.checkpoint_every == 0 or overdue:
            self._save(folder, LAST)
        return row

    def _over_ranks(self, report: StepReport) -> tuple[dict[str, Any], bool]:
        """Collective. Return times and memory of the slowest rank, bytes and messages of all.

        Also whether a checkpoint is overdue, by rank 0's clock, so that all ranks do the same.
        """
        times = ("epoch_s", "compute_s", "halo_wait_s", "grad_sync_s")
        sums = ("halo_bytes", "halo_messages")
        overdue = time.monotonic() - self._saved_at > CHECKPOINT_S
        mine = [*(getattr(report, name) for name in (*times, *sums)), peak_rss_bytes()]
        mine += [report.staleness, overdue]
        lanes, counts = halo_table(report.halo, self.model.num_blocks)
        table = torch.zeros(self.world.world_size, len(mine) + counts.numel(), dtype=torch.float64)
        table[self.world.rank] = torch.cat(
            [torch.tensor(mine, dtype=torch.float64), counts.view(-1)]
        )
        table = table.to(self.world.transport.device)
        self.world.transport.all_reduce(table).wait()
        table = table.cpu()
        row: dict[str, Any] = dict(zip(times, table.amax(0).tolist(), strict=False))
        total = table.sum(0).tolist()
        row.update({name: int(total[len(times) + i]) for i, name in enumerate(sums)})
        *_, peak, staleness, late = table[:, : len(mine)].unbind(1)
        row["peak_rss_bytes"] = int(peak.max())
        if self.full_batch.holds_rows:
            known = [value for value in staleness.tolist() if value == value]
            row["staleness"] = max(known, default=float("nan"))
        by_rank = table[:, len(mine) :].view(-1, *counts.shape)
        row["halo"] = halo_rows(lanes, by_rank, with_late=self.config.profile_skew)
        return row, bool(late[0])

    def _save(self, folder: RunFolder | None, name: str) -> None:
        if name == LAST:
            self._saved_at = time.monotonic()
            self._halo_files.save(self.progress.epoch)
        if folder is None:
            return
        checkpoint = Checkpoint(
            epoch=self.progress.epoch,
            fingerprint=self.shard.meta.fingerprint,
            options=self.config.mathematics(),
            model=self.model.state_dict(),
            optimizer=self.optimizer.state_dict(),
            scheduler=self.scheduler.state_dict(),
            progress=asdict(self.progress),
        )
        write_checkpoint(folder.path, checkpoint, name)

    def _restore(self, checkpoint: Checkpoint) -> None:
        for name, now in self.config.mathematics().items():
            before = checkpoint.options.get(name)
            if before != now:
                raise ConfigError(
                    f"a resumed run must keep {name}={before}, got {now}: start a new run, or "
                    f"leave --{name.replace('_', '-')} out"
                )
        load_model(self.model, checkpoint, self.shard)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.scheduler.load_state_dict(checkpoint.scheduler)
        self.progress = Progress(**checkpoint.progress)

    def _open_folder(self) -> RunFolder | None:
        """Collective. Open the run folder on rank 0."""
        folder: RunFolder | None = None
        with self.world.everywhere("opening the run folder"):
            if self.world.is_main:
                resume_epoch = self.progress.epoch if self.config.resume else None
                folder = RunFolder(
                    self._folder_path(), self.config, self.dataset, resume_epoch=resume_epoch
                )
        self._halo_files.open(None if folder is None else folder.path)
        return folder

    def _folder_path(self) -> Path:
        if self.config.resume:
            return Path(self.config.resume)
        if self.config.out:
            return Path(self.config.out)
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        return Path("runs") / f"{self.shard.meta.dataset}-{self.config.model}-{stamp}"

    def _report(self, row: dict[str, Any], bar: Any) -> None:  # noqa: ANN401 - tqdm is generic
        if not self.world.is_main:
            return
        text = f"loss {row['loss']:.4f}"
        if row["val_metric"] == row["val_metric"]:
            text += f" val {row['val_metric']:.4f} test {row['test_metric']:.4f}"
        if not bar.disable:
            bar.set_postfix_str(text)
            return
        every = max(1, self.config.epochs // LINES_PER_RUN)
        if (row["epoch"] + 1) % every == 0:
            LOG.info("epoch %d %s (%.3f s)", row["epoch"], text, row["epoch_s"])

    def _summary(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        times = [row["epoch_s"] for row in rows]
        meta = self.shard.meta
        return {
            "best_epoch": self.progress.best_epoch,
            "val_metric_at_best": self.progress.best_val,
            "test_metric_at_best": self.progress.test_at_best,
            "metric_name": self.metric,
            "epochs": self.progress.epoch,
            "epoch_s_median": statistics.median(times) if times else float("nan"),
            "world_size": self.world.world_size,
            "backend": self.world.transport.backend,
            "halo_policy": self.config.halo,
            "dataset": meta.dataset,
            "partition": {
                "num_parts": meta.num_parts,
                "method": meta.partitioner["method"],
                "replication_factor": meta.quality["replication_factor"],
            },
        }


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
    dtype = torch.promote_types(ROW_DTYPES[config.precision], torch.float32)
    model.to(device=world.device, dtype=dtype)
    broadcast_state(model, world.transport)
    return model


def load_model(model: torch.nn.Module, checkpoint: Checkpoint, shard: Shard) -> None:
    """Load a checkpoint's parameters.

    Raises:
        ConfigError: The checkpoint is of another graph, or of a model of another shape.
    """
    if checkpoint.fingerprint != shard.meta.fingerprint:
        raise ConfigError(
            f"the checkpoint is of another graph than {shard.meta.dataset!r}: give the folder that "
            "the run was started on, or another partition of the same graph"
        )
    try:
        model.load_state_dict(checkpoint.model)
    except RuntimeError as error:
        raise ConfigError(
            f"the checkpoint is of another model: {str(error).splitlines()[-1].strip()}"
        ) from error
