"""The training loop: steps, evaluation, early stopping, checkpoints, the run folder."""

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from tqdm import tqdm

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.table_state import load_optimizer, whole_optimizer, whole_state
from gnn_dist.parallel.tables import tables
from gnn_dist.shard.shard import Shard
from gnn_dist.train.callbacks import Callback, check_callbacks
from gnn_dist.train.checkpoint import (
    BEST,
    CHECKPOINT_FOLDER,
    LAST,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from gnn_dist.train.config import TrainConfig
from gnn_dist.train.epoch_row import Agreed, over_ranks
from gnn_dist.train.halo_files import HaloFiles
from gnn_dist.train.make_steps import make_steps
from gnn_dist.train.metrics import make_metric
from gnn_dist.train.models import ROW_DTYPES, load_model, make_model
from gnn_dist.train.optim import make_optimizer, make_scheduler
from gnn_dist.train.own_model import OwnModel, check_own_model
from gnn_dist.train.progress import Progress
from gnn_dist.train.run_folder import RunFolder
from gnn_dist.train.steps import StepReport
from gnn_dist.train.task import NodeTask, make_task

__all__ = ["Progress", "Trainer", "load_model", "make_model"]

LOG = logging.getLogger(__name__)
CHECKPOINT_S = 60.0  # at most between two checkpoints, whatever the number of epochs
LINES_PER_RUN = 20  # log lines of a run without a progress bar


class Trainer:
    """Collective. One training run, full-batch or in minibatches.

    `fit` is the whole loop. A loop of one's own is made of the same steps:

        fit            open the run folder, epochs until `finished`, summary
          run_epoch    train_step, evaluate every few epochs, record, save every few epochs

    Args:
        config: The options.
        shard: This rank's shard.
        world: The ranks.
        dataset: What the run is on, for the run folder.
        model: A module of one's own, written for one machine with layers of PyTorch Geometric,
            called as `model(x, edge_index)` (see `OwnModel`); it is parallelized and trained, not
            copied. By default the one that `config` names.
        task: Labels, masks, loss and metric; by default `make_task` with what `config` says.
        callbacks: Told of what happens, in order.

    Raises:
        ConfigError: On every rank: an option does not fit the dataset or the model.

    Attributes:
        model: The model; `state_dict` loads into `torch_geometric.nn`'s model of the same kind, or
            into the user's own.
        progress: How far the run has come.
        metric: Name of what is evaluated.
        stopped: Whether some rank has asked for the end of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        shard: Shard,
        world: World,
        dataset: str = "",
        *,
        model: nn.Module | None = None,
        task: NodeTask | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config, self.world, self.callbacks = config, world, check_callbacks(callbacks)
        self.dataset = dataset or shard.meta.dataset
        self.shard = shard.with_dtype(ROW_DTYPES[config.precision])
        self.shard.required_features  # noqa: B018 - refuse a graph without features at once
        if model is not None:
            check_own_model(model, config)
        self.task = task or make_task(
            self.shard, config.split, world, loss=config.loss, metric=config.metric
        )
        self._metric = make_metric(self.task)
        self.metric = self._metric.name
        self.steps = make_steps(config, self.shard, world, self.task, model)
        self.model = self.steps.model
        self.steps.meter.separates_skew = config.profile_skew
        self.optimizer = make_optimizer(self.model.parameters(), config)
        self.scheduler = make_scheduler(self.optimizer, config, config.epochs)
        self.progress = Progress()
        self.stopped = self._stop_wanted = self._keeps = False
        self._folder: RunFolder | None = None
        self._halo_files = HaloFiles(self.steps.keepers, world)
        self._saved_at = time.monotonic()
        if config.resume:
            held = {name for name, _, _ in tables(self.model)}
            self._restore(read_checkpoint(config.resume, world, tables=held))
            self._halo_files.restore(Path(config.resume), self.progress.epoch)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, patience has run out, or a rank has asked for the end."""
        out_of_patience = 0 < self.config.patience <= self.progress.stale
        return self.stopped or out_of_patience or self.progress.epoch >= self.config.epochs

    def fit(self, *, keep: bool = True) -> dict[str, Any]:
        """Collective. Train to the last epoch or until patience runs out; return the summary.

        Args:
            keep: Write a run folder; otherwise nothing is left on disk.
        """
        if keep:
            self.save()  # so that a run can be resumed from its first moment
        rows: list[dict[str, Any]] = []
        bar = tqdm(
            total=self.config.epochs,
            initial=self.progress.epoch,
            disable=None if self._folder else True,
            unit="epoch",
            leave=False,
        )
        try:
            self._tell("on_fit_start")
            while not self.finished:
                rows.append(self.run_epoch())
                bar.update()
                self._report(rows[-1], bar)
            if self._keeps:
                self.save()
            self.steps.drain()
            summary = self._summary(rows)
            self._tell("on_fit_end", summary)
            if self._folder is not None:
                self._folder.finish(summary)
        finally:
            bar.close()
            self.close()
        return summary

    def run_epoch(self) -> dict[str, Any]:
        """Collective. Do a step and what is due after it; return the epoch's row."""
        report = self.train_step()
        done, config = self.progress.epoch, self.config
        every = config.eval_every
        is_due = every > 0 and (done % every == 0 or done == config.epochs)
        row, overdue = self._record(report, self.evaluate() if is_due else None)
        if self._keeps and (done % config.checkpoint_every == 0 or overdue):
            self.save()
        return row

    def train_step(self) -> StepReport:
        """Collective. Update the parameters once, and the learning rate.

        Raises:
            GnnDistError: On every rank, if the loss is not finite.
        """
        report = self.steps.step(self.optimizer, self.progress.epoch)
        self.scheduler.step()
        self.progress.epoch += 1
        self._tell("on_step_end", report)
        return report

    def predict(self) -> Tensor:
        """Collective. Return the model's output (n, C) for owned nodes, exactly, no dropout."""
        return self.steps.predict()

    def evaluate(self) -> dict[str, float]:
        """Collective. Return the metric of every split with the present parameters.

        Once after a step it counts for `progress`, and the best are kept in the run folder if that
        is open.
        """
        scores = self._metric.scores(self.predict(), self.task, self.world)
        progress = self.progress
        if progress.evaluated < progress.epoch:
            progress.evaluated = progress.epoch
            higher = self._metric.higher_is_better
            if progress.update(progress.epoch - 1, scores, higher_is_better=higher) and self._keeps:
                self._write(BEST)
        self._tell("on_evaluate_end", scores)
        return scores

    def record(self, report: StepReport, scores: dict[str, float] | None = None) -> dict[str, Any]:
        """Collective. Return a row of what all ranks report, and add it to an open run folder.

        Args:
            report: Of the last step.
            scores: What `evaluate` returned after it, if it did.
        """
        row, _ = self._record(report, scores)
        return row

    def save(self) -> None:
        """Collective. Write a checkpoint into the run folder, which is opened by the first one."""
        if not self._keeps:
            self._open_folder()
        self._write(LAST)

    def stop(self) -> None:
        """Ask for the end of the run; any rank may, and all end it after the present epoch."""
        self._stop_wanted = True

    def close(self) -> None:
        """Close the run folder's files; `fit` does."""
        if self._folder is not None:
            self._folder.close()

    def _tell(self, event: str, *values: Any) -> None:  # noqa: ANN401 - whatever the event has
        for callback in self.callbacks:
            getattr(callback, event)(self, *values)

    def _record(
        self, report: StepReport, scores: dict[str, float] | None
    ) -> tuple[dict[str, Any], bool]:
        """Collective. Return the row, and whether a checkpoint is overdue."""
        overdue = time.monotonic() - self._saved_at > CHECKPOINT_S
        wishes = Agreed(overdue, self._stop_wanted)
        more, agreed = over_ranks(report, self.steps, self.world, wishes)
        self.stopped = agreed.stop
        scores = scores or dict.fromkeys(self.task.masks, float("nan"))
        row = {
            "epoch": self.progress.epoch - 1,
            "loss": report.loss,
            **{f"{split}_metric": value for split, value in scores.items()},
            **more,
        }
        if self._folder is not None:
            self._folder.add(row)
        return row, agreed.overdue

    def _write(self, name: str) -> None:
        if name == LAST:
            self._saved_at = time.monotonic()
            self._halo_files.save(self.progress.epoch)
        path = None
        state, kept = self._states()
        if self._folder is not None:
            checkpoint = Checkpoint(
                epoch=self.progress.epoch,
                fingerprint=self.shard.meta.fingerprint,
                options=self.config.mathematics(),
                model=state,
                optimizer=kept,
                scheduler=self.scheduler.state_dict(),
                progress=asdict(self.progress),
            )
            write_checkpoint(self._folder.path, checkpoint, name)
            path = self._folder.path / CHECKPOINT_FOLDER / name
        self._tell("on_checkpoint", path)

    def _states(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Collective if the model has tables of nodes. Return its state and the optimiser's.

        Rows of all nodes, by original id, are on rank 0, which writes.
        """
        state = self.model.state_dict()
        if not any(tables(self.model)):
            return state, self.optimizer.state_dict()
        whole = whole_state(self.model, state, "")
        return whole, whole_optimizer(self.optimizer, self.world)

    def _restore(self, checkpoint: Checkpoint) -> None:
        for name, now in self.config.mathematics().items():
            # An option that is younger than the checkpoint had its default.
            before = checkpoint.options.get(name, getattr(TrainConfig, name))
            if before != now:
                raise ConfigError(
                    f"a resumed run must keep {name}={before}, got {now}: start a new run, or "
                    f"leave --{name.replace('_', '-')} out"
                )
        load_model(self.model, checkpoint, self.shard, self.world)
        if any(tables(self.model)):
            load_optimizer(self.optimizer, checkpoint.optimizer, self.world)
        else:
            self.optimizer.load_state_dict(checkpoint.optimizer)
        self.scheduler.load_state_dict(checkpoint.scheduler)
        self.progress = Progress(**checkpoint.progress)

    def _open_folder(self) -> None:
        """Collective. Open the run folder on rank 0."""
        with self.world.everywhere("opening the run folder"):
            if self.world.is_main:
                resume_epoch = self.progress.epoch if self.config.resume else None
                self._folder = RunFolder(
                    self._folder_path(), self.config, self.dataset, resume_epoch=resume_epoch
                )
        self._keeps = True
        self._halo_files.open(None if self._folder is None else self._folder.path)

    def _folder_path(self) -> Path:
        if self.config.resume:
            return Path(self.config.resume)
        if self.config.out:
            return Path(self.config.out)
        own = isinstance(self.steps, OwnModel)
        name = type(self.model).__name__.lower() if own else self.config.model
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        return Path("runs") / f"{self.shard.meta.dataset}-{name}-{stamp}"

    def _report(self, row: dict[str, Any], bar: Any) -> None:  # noqa: ANN401 - tqdm is generic
        if self._folder is None:
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
            "mode": self.config.mode,
            "halo_policy": self.config.halo,
            "dataset": meta.dataset,
            "partition": {
                "num_parts": meta.num_parts,
                "method": meta.partitioner["method"],
                "replication_factor": meta.quality["replication_factor"],
            },
            "run_folder": "" if self._folder is None else str(self._folder.path),
        }
