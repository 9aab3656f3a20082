"""Metrics of the user's own: functions, and objects of torchmetrics, which is not imported here.

All ranks gather the rows of a split and compute alike, so that whatever is computed of them is
what one process computes, and no state need be merged.
"""

import copy
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.train.losses import aligned
from gnn_dist.train.task import MetricFunction, NodeTask

__all__ = ["direction_of", "name_of", "user_metric"]


def name_of(metric: MetricFunction) -> str:
    """Return what a metric is called."""
    return str(getattr(metric, "__name__", type(metric).__name__))


def direction_of(metric: MetricFunction) -> bool:
    """Return whether larger is better: what its `higher_is_better` says, else yes."""
    return getattr(metric, "higher_is_better", None) is not False


def user_metric(
    metric: MetricFunction, outputs: Tensor, task: NodeTask, world: World
) -> dict[str, float]:
    """Collective. Return a metric of the user's own on every split.

    Args:
        metric: The function, or the object of torchmetrics.
        outputs: (n, C), of owned nodes.
        task: Labels and masks.
        world: The ranks.

    Returns:
        By name of the split; NaN for one without nodes.

    Raises:
        ConfigError: It does not return one number.
    """
    guess, y = aligned(outputs, task.y)
    masks = torch.stack(list(task.masks.values()), 1)
    some = masks.any(1)
    ids = torch.arange(len(y)) if task.node_id is None else task.node_id
    mine = [rows[some.to(rows.device)].cpu().numpy() for rows in (ids, guess, y, masks)]
    everyone = world.transport.all_gather_object(mine)
    columns = [np.concatenate(pieces) for pieces in zip(*everyone, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    _, all_guess, all_y, all_masks = (torch.from_numpy(rows[order]) for rows in columns)
    scores = {}
    for i, split in enumerate(task.masks):
        rows = all_masks[:, i]
        chosen = all_guess[rows], all_y[rows]
        scores[split] = _value(metric, *chosen) if len(chosen[1]) else float("nan")
    return scores


def _value(metric: MetricFunction, outputs: Tensor, y: Tensor) -> float:
    value = _computed(metric, outputs, y) if _of_torchmetrics(metric) else metric(outputs, y)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metric {name_of(metric)} must return one number, got {type(value).__name__}"
        ) from error


def _of_torchmetrics(metric: object) -> bool:
    # Whoever has made such an object has loaded the library.
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(metric, library.Metric)


def _computed(metric: Any, outputs: Tensor, y: Tensor) -> Any:  # noqa: ANN401 - torchmetrics'
    own = copy.deepcopy(metric)
    # It would sum over the ranks of torch.distributed what every rank has already.
    own.distributed_available_fn = lambda: False
    own.reset()
    if not y.is_floating_point():
        outputs = outputs.sigmoid() if y.dim() == 2 else outputs.softmax(1)
    own.update(outputs, y.long() if y.dtype == torch.bool else y)
    return own.compute()
