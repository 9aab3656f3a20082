"""What the user's code may do while a run goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gnn_dist.errors import ConfigError

if TYPE_CHECKING:
    from gnn_dist.train.steps import StepReport
    from gnn_dist.train.trainer import Trainer

__all__ = ["Callback", "KeepBest", "check_callbacks"]


class Callback:
    """Called by a `Trainer` on every rank, in this order; each method does nothing by default.

    A method that communicates must do so on all ranks. `trainer.world.is_main` is for what one
    rank should do alone, `trainer.stop()` on any rank ends the run on all after the epoch.

    Example:
        >>> class Losses(Callback):
        ...     def __init__(self):
        ...         self.losses = []
        ...
        ...     def on_step_end(self, trainer, report):
        ...         self.losses.append(report.loss)
    """

    def on_fit_start(self, trainer: "Trainer") -> None:
        """Called before the first epoch of `fit`."""

    def on_step_end(self, trainer: "Trainer", report: "StepReport") -> None:
        """Called after the parameters changed; `trainer.progress.epoch` counts this step."""

    def on_evaluate_end(self, trainer: "Trainer", scores: dict[str, float]) -> None:
        """Called with the metric by split; `trainer.progress` knows already if it is the best."""

    def on_checkpoint(self, trainer: "Trainer", path: Path | None) -> None:
        """Called when a checkpoint has been written; only rank 0 has its path."""

    def on_fit_end(self, trainer: "Trainer", summary: dict[str, Any]) -> None:
        """Called after the last epoch of `fit`."""


def check_callbacks(callbacks: object) -> list[Callback]:
    """Return callbacks as a list.

    Raises:
        ConfigError: They are not callbacks in a list or tuple.
    """
    given = list(callbacks) if isinstance(callbacks, list | tuple) else None
    if given is None or not all(isinstance(callback, Callback) for callback in given):
        raise ConfigError(f"callbacks must be a list of gnn_dist.Callback, got {callbacks!r}")
    return given


class KeepBest(Callback):
    """Gives the model the parameters of its best evaluation at the end of a run.

    They are held in memory; a run resumed later knows only those since then.
    """

    def __init__(self) -> None:
        self._state: dict[str, Tensor] | None = None

    def on_evaluate_end(self, trainer: "Trainer", scores: dict[str, float]) -> None:
        """Keep the parameters if they are the best so far."""
        del scores
        if trainer.progress.best_epoch + 1 == trainer.progress.epoch:
            state = trainer.model.state_dict()
            self._state = {name: values.detach().clone() for name, values in state.items()}

    def on_fit_end(self, trainer: "Trainer", summary: dict[str, Any]) -> None:
        """Put the best parameters back."""
        del summary
        if self._state is not None:
            trainer.model.load_state_dict(self._state)
