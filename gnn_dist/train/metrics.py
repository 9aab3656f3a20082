"""Metrics of node classification from counts (or scores) of all ranks."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.train.task import NodeTask

__all__ = ["METRICS", "evaluate_metric", "metric_name", "roc_auc"]

METRICS = ("accuracy", "micro_f1", "macro_f1", "roc_auc")


def metric_name(chosen: str, task: NodeTask) -> str:
    """Resolve `auto`, and refuse what the task does not have.

    Raises:
        ConfigError: Accuracy for several labels a node.
    """
    if chosen == "auto":
        return "micro_f1" if task.multilabel else "accuracy"
    if chosen == "accuracy" and task.multilabel:
        raise ConfigError("accuracy is for one label a node: use --metric micro_f1 or macro_f1")
    return chosen


def evaluate_metric(name: str, logits: Tensor, task: NodeTask, world: World) -> dict[str, float]:
    """Collective. Return a metric of every split over the nodes of all ranks.

    Args:
        name: One of `METRICS`.
        logits: (n, C), of owned nodes.
        task: Labels and masks.
        world: The ranks.

    Returns:
        By name of the split; NaN for a split without nodes, or where the metric is undefined.
    """
    if name == "roc_auc":
        return _gathered_auc(logits, task, world)
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
