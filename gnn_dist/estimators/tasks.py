"""Tasks of nodes that the user names, with labels of the graph or of the user's own."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.estimators.by_node import owned_among, targets_of
from gnn_dist.shard.shard import Shard
from gnn_dist.train.task import NodeTask, choose_masks, is_labelled, label_width

__all__ = ["Picked", "pick", "scoring_task", "training_task"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Picked:
    """Nodes that were named, on this rank.

    Attributes:
        mask: bool (n,).
        y: Labels of owned nodes, at least of these.
        width: Classes, labels or numbers: the width of a model's output.
        classes: What class numbers stand for; None for what the graph says.
    """

    mask: Tensor
    y: Tensor
    width: int
    classes: Array | None


def pick(
    shard: Shard,
    ids: Array,
    given: ArrayLike | None,
    *,
    regression: bool,
    classes: Array | None = None,
) -> Picked:
    """Find named nodes among the owned ones.

    Args:
        shard: The shard.
        ids: int64 (k,), original ids, alike on all ranks.
        given: Their labels, (k, ...); None for the graph's.
        regression: Whether these are numbers to predict.
        classes: Classes that are known already, ascending.

    Raises:
        ConfigError: An id repeats, has no label, or one of another class.
    """
    mask, where = owned_among(ids, shard.node_id)
    if given is None:
        y, width = label_width(shard)
        without = mask & ~is_labelled(y)
        if without.any():
            raise ConfigError(f"node {int(shard.node_id[without][0])} has no label: leave it out")
        return Picked(mask, y, width, None)
    values = targets_of(given, len(ids))
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if regression:
        values, fill = values.astype(np.float64), float("nan")
    elif values.ndim == 2:
        values, fill = values.astype(bool), False
    else:
        classes, values = _numbered(values, classes)
        fill = -1
    labels = torch.from_numpy(values)
    y = torch.full((shard.num_owned, *labels.shape[1:]), fill, dtype=labels.dtype)
    y[mask.cpu()] = labels[where.cpu()]
    width = labels.size(1) if labels.dim() == 2 else 1
    if not regression and labels.dim() == 1 and classes is not None:
        width = len(classes)
    return Picked(mask, y.to(mask.device), width, classes)


def _numbered(values: Array, classes: Array | None) -> tuple[Array, Array]:
    """Return classes, ascending, and int64 numbers of values among them."""
    if values.dtype.kind in "fc" and np.isnan(values).any():
        raise ConfigError("labels of classes must not be NaN: leave nodes without a label out")
    try:
        found, number = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise ConfigError(f"labels must be of one kind, which can be sorted: {error}") from error
    if classes is None:
        return found, number.astype(np.int64)
    strange = found[~np.isin(found, classes)]
    if len(strange):
        raise ConfigError(f"labels must be of classes_, got {strange[0]}, which fit has not seen")
    return classes, np.searchsorted(classes, values).astype(np.int64)


def training_task(shard: Shard, picked: Picked, split: int, *, own_labels: bool) -> NodeTask:
    """Return the task of training on some nodes; `num_train` is still to be counted.

    The graph's validation and test nodes stay, without those that are trained on; there are none
    where the graph has no masks, or labels are the user's own.
    """
    nobody = torch.zeros_like(picked.mask)
    masks = {"train": picked.mask, "val": nobody, "test": nobody}
    if shard.meta.num_splits and not own_labels:
        official = choose_masks(shard, split)
        masks.update({name: official[name] & ~picked.mask for name in ("val", "test")})
    return NodeTask(picked.y, masks, 0, picked.width, node_id=shard.node_id)


def scoring_task(task: NodeTask, picked: Picked) -> NodeTask:
    """Return a task with one split, `nodes`."""
    return replace(task, y=picked.y, masks={"nodes": picked.mask})
