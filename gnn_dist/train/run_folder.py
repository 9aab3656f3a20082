"""What a run leaves on disk: config.yaml, metrics.jsonl, summary.json, TensorBoard events."""

import json
import math
from pathlib import Path
from typing import Any, TextIO

import yaml

from gnn_dist.errors import ConfigError
from gnn_dist.train.config import CONFIG_FILE, TrainConfig

__all__ = ["RunFolder"]

METRICS_FILE, SUMMARY_FILE = "metrics.jsonl", "summary.json"


class RunFolder:
    """The run folder of one run; only rank 0 has one.

    Args:
        path: The folder; it must not hold a run, unless this is a resumed one.
        config: Written to `config.yaml`.
        dataset: The dataset argument, written beside the configuration.
        resume_epoch: Continue at this epoch: rows of it and later ones are dropped. None for a new
            run.

    Raises:
        ConfigError: The folder holds another run, or cannot be written.
    """

    def __init__(
        self, path: Path, config: TrainConfig, dataset: str, *, resume_epoch: int | None = None
    ) -> None:
        self.path = path
        if resume_epoch is None and (path / CONFIG_FILE).exists():
            raise ConfigError(f"{path} holds a run already: choose another --out, or --resume it")
        try:
            path.mkdir(parents=True, exist_ok=True)
            values = {"dataset": dataset, **config.to_dict()}
            (path / CONFIG_FILE).write_text(yaml.safe_dump(values, sort_keys=False))
            if resume_epoch is not None:
                self._drop_rows(resume_epoch)
            self._metrics: TextIO = (path / METRICS_FILE).open("a")
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be written: {error}") from error
        self._events = _event_writer(path) if config.tensorboard else None

    def add(self, row: dict[str, Any]) -> None:
        """Append one epoch's row; NaN is written as null."""
        self._metrics.write(json.dumps(_plain(row)) + "\n")
        self._metrics.flush()
        if self._events is not None:
            for name, value in row.items():
                if isinstance(value, int | float) and name != "epoch" and not math.isnan(value):
                    self._events.add_scalar(name, value, row["epoch"])

    def finish(self, summary: dict[str, Any]) -> None:
        """Write `summary.json` and close all files."""
        (self.path / SUMMARY_FILE).write_text(json.dumps(_plain(summary), indent=1) + "\n")
        self.close()

    def close(self) -> None:
        """Close all files."""
        self._metrics.close()
        if self._events is not None:
            self._events.close()

    def _drop_rows(self, epoch: int) -> None:
        """Drop rows from an epoch on, and a last line that a killed run left half-written."""
        path = self.path / METRICS_FILE
        if not path.exists():
            return
        kept = []
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["epoch"] < epoch:
                    kept.append(line)
            except (ValueError, KeyError):
                break
        path.write_text("".join(line + "\n" for line in kept))


def _event_writer(path: Path) -> Any:  # noqa: ANN401 - torch's writer is untyped
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(path))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
