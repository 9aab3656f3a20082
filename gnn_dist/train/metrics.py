"""Metrics by name, from counts, sums or scores of all ranks: those of one process, exactly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.train.losses import aligned
from gnn_dist.train.task import NodeTask
from gnn_dist.train.user_metrics import direction_of, name_of, user_metric

__all__ = ["METRICS", "Metric", "evaluate_metric", "make_metric", "metric_name", "roc_auc"]

# By what is predicted; the first is `auto`.
METRICS = {
    "multiclass": ("accuracy", "micro_f1", "macro_f1", "roc_auc"),
    "multilabel": ("micro_f1", "macro_f1", "roc_auc"),
    "regression": ("r2", "mae", "rmse"),
}
MADE_FOR = {"accuracy": "one label a node", "r2": "numbers", "mae": "numbers", "rmse": "numbers"}
ERRORS = ("mae", "rmse")  # the smaller the better


@dataclass(frozen=True)
class Metric:
    """What is reported and watched.

    Attributes:
        name: Its name.
        higher_is_better: Whether a larger value is a better one.
        scores: Collective. Returns its value on every split, of (outputs, task, world).
    """

    name: str
    higher_is_better: bool
    scores: Callable[[Tensor, NodeTask, World], dict[str, float]]

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another."""
        return value > than if self.higher_is_better else value < than


def make_metric(task: NodeTask) -> Metric:
    """Return the metric of a task.

    It is a name out of `METRICS`; a function of (outputs, y) over the rows of a split of all ranks,
    ordered by original id, outputs as the model gives them; or a `torchmetrics.Metric`, which
    gets the same rows, as probabilities where there are classes or labels. The user's own are
    computed on every rank and return one number. An attribute `higher_is_better = False` says that
    smaller is better.

    Raises:
        ConfigError: There is no such metric for these labels.
    """
    if not isinstance(task.metric, str):
        chosen = task.metric
        return Metric(
            name_of(chosen),
            direction_of(chosen),
            lambda outputs, task, world: user_metric(chosen, outputs, task, world),
        )
    name = metric_name(task.metric, task)
    return Metric(
        name,
        name not in ERRORS,
        lambda outputs, task, world: evaluate_metric(name, outputs, task, world),
    )


def metric_name(chosen: str, task: NodeTask) -> str:
    """Resolve `auto`, and refuse what the task does not have.

    Raises:
        ConfigError: A metric for other labels, such as accuracy for several labels a node.
    """
    names = METRICS[task.kind]
    if chosen == "auto":
        return names[0]
    if chosen not in names:
        raise ConfigError(
            f"{chosen} is for {MADE_FOR.get(chosen, 'labels')}: use --metric {' or '.join(names)}"
        )
    return chosen


def evaluate_metric(name: str, logits: Tensor, task: NodeTask, world: World) -> dict[str, float]:
    """Collective. Return a metric of every split over the nodes of all ranks.

    Args:
        name: A name out of `METRICS`.
        logits: (n, C), of owned nodes.
        task: Labels and masks.
        world: The ranks.

    Returns:
        By name of the split; NaN for a split without nodes, or where the metric is undefined.
    """
    if name == "roc_auc":
        return _gathered_auc(logits, task, world)
    if task.kind == "regression":
        return _errors(name, logits, task, world)
    counts = torch.stack([_counts(logits, task, mask) for mask in task.masks.values()])
    world.transport.all_reduce(counts).wait()
    score = {"accuracy": _micro_f1, "micro_f1": _micro_f1, "macro_f1": _macro_f1}[name]
    return {
        split: score(table, task.multilabel)
        for split, table in zip(task.masks, counts.cpu().numpy(), strict=True)
    }


def _counts(logits: Tensor, task: NodeTask, mask: Tensor) -> Tensor:
    """Return int64 (3, C): true positives, false positives, false negatives of each class."""
    picked, y = logits[mask], task.y[mask]
    if task.multilabel:
        guess = picked > 0
        truth = y
    else:
        classes = torch.arange(task.num_classes, device=y.device)
        guess = picked.argmax(1, keepdim=True) == classes if len(picked) else y[:, None] == classes
        truth = y[:, None] == classes
    pairs = (guess & truth, guess & ~truth, ~guess & truth)
    return torch.stack([pair.sum(0) for pair in pairs])


def _micro_f1(table: NDArray[Any], _: bool) -> float:
    # For one label a node this is the accuracy: each wrong node is one false positive and one
    # false negative.
    positive, false_positive, false_negative = table.sum(1)
    total = 2 * positive + false_positive + false_negative
    return float(2 * positive / total) if total else float("nan")


def _macro_f1(table: NDArray[Any], multilabel: bool) -> float:
    positive, false_positive, false_negative = table
    total = 2 * positive + false_positive + false_negative
    if not total.any():
        return float("nan")
    score = 2 * positive / np.maximum(total, 1)
    # With one label a node, classes that neither occur nor are predicted do not count.
    return float(score.mean() if multilabel else score[total > 0].mean())


def _errors(name: str, outputs: Tensor, task: NodeTask, world: World) -> dict[str, float]:
    """Collective. Return the error, or the coefficient of determination, averaged over numbers."""
    guess, y = aligned(outputs, task.y)
    if y.dim() == 1:
        guess, y = guess[:, None], y[:, None]
    guess, y = guess.double(), y.double()
    rows = list(task.masks.values())
    sums = torch.stack([torch.stack([torch.ones_like(y[m]).sum(0), y[m].sum(0)]) for m in rows])
    world.transport.all_reduce(sums).wait()
    count, total = sums.unbind(1)  # (splits, T) each
    mean = total / count.clamp(min=1)
    # About the mean of all ranks: a difference of two large sums would lose digits.
    parts = torch.stack(
        [
            torch.stack(
                [
                    (guess[m] - y[m]).abs().sum(0),
                    (guess[m] - y[m]).square().sum(0),
                    (y[m] - mean[i]).square().sum(0),
                ]
            )
            for i, m in enumerate(rows)
        ]
    )
    world.transport.all_reduce(parts).wait()
    value = ERROR_FUNCTIONS[name](count, *parts.unbind(1))
    return dict(zip(task.masks, value.mean(1).tolist(), strict=True))


def _mae(count: Tensor, absolute: Tensor, _: Tensor, __: Tensor) -> Tensor:
    return absolute / count


def _rmse(count: Tensor, _: Tensor, squared: Tensor, __: Tensor) -> Tensor:
    return (squared / count).sqrt()


def _r2(count: Tensor, _: Tensor, squared: Tensor, spread: Tensor) -> Tensor:
    """As scikit-learn: of a constant 1 if it is met and else 0; undefined for one node."""
    of_constant = (squared == 0).double()
    value = torch.where(spread > 0, 1 - squared / spread, of_constant)
    return torch.where(count > 1, value, torch.nan)


ERROR_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {"mae": _mae, "rmse": _rmse, "r2": _r2}


def _gathered_auc(logits: Tensor, task: NodeTask, world: World) -> dict[str, float]:
    scores = logits if task.multilabel else logits.softmax(1)
    mine = {
        split: (scores[mask].double().cpu().numpy(), task.y[mask].cpu().numpy())
        for split, mask in task.masks.items()
    }
    everyone = world.transport.all_gather_object(mine)
    return {
        split: roc_auc(*(np.concatenate([ranks[split][i] for ranks in everyone]) for i in (0, 1)))
        for split in task.masks
    }


def roc_auc(scores: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the area under the ROC curve.

    Args:
        scores: float (k, C).
        y: int (k,), classes; or bool (k, C), labels.

    Returns:
        For two classes the area of class 1; otherwise the mean over classes (labels) that have
        both positive and negative nodes; NaN where none has.
    """
    if y.ndim == 1:
        columns = [1] if scores.shape[1] == 2 else list(range(scores.shape[1]))
        truths = [(scores[:, c], y == c) for c in columns]
    else:
        truths = [(scores[:, c], y[:, c]) for c in range(y.shape[1])]
    areas = [_auc(column, truth) for column, truth in truths if 0 < truth.sum() < len(truth)]
    return float(np.mean(areas)) if areas else float("nan")


def _auc(score: NDArray[Any], truth: NDArray[Any]) -> float:
    """Mann-Whitney: the chance that a positive scores above a negative; ties count one half."""
    from scipy.stats import rankdata

    positive = int(truth.sum())
    rank_sum = rankdata(score)[truth].sum()
    return float((rank_sum - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))
