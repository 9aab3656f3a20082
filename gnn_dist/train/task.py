"""What is learned of nodes: which of them count, their labels, the loss and the metric."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import check_split
from gnn_dist.train.losses import LossFunction, check_loss, kind_of, node_loss

__all__ = [
    "SPLITS",
    "MetricFunction",
    "NodeTask",
    "choose_masks",
    "count_train",
    "is_labelled",
    "label_width",
    "make_task",
    "node_loss",
]

MetricFunction = Callable[[Tensor, Tensor], Any]

SPLITS = ("train", "val", "test")
SPLIT_FRACTIONS = (0.5, 0.2)  # the rest are test nodes
SPLIT_SITE = 1 << 20  # apart from the sites of any model's draws


@dataclass(frozen=True, eq=False)
class NodeTask:
    """Labels and masks of the owned nodes.

    Attributes:
        y: int64 (n,), -1 for none; bool (n, C); or floating (n,) or (n, T), NaN for none.
        masks: By name of the split, bool (n,).
        num_train: Training nodes of all ranks.
        num_classes: C, or T, the numbers to predict of a node: the width of a model's output.
        loss: A name, or the user's own: see `node_loss`.
        metric: A name, or the user's own: see `make_metric`.
        node_id: int64 (n,), original ids, by which rows are ordered for a metric of the user's.
    """

    y: Tensor
    masks: dict[str, Tensor]
    num_train: int
    num_classes: int
    loss: str | LossFunction = "auto"
    metric: str | MetricFunction = "auto"
    node_id: Tensor | None = None

    @property
    def kind(self) -> str:
        """`multiclass`, `multilabel` or `regression`."""
        return kind_of(self.y)

    @property
    def multilabel(self) -> bool:
        """Whether a node has several labels."""
        return self.kind == "multilabel"

    def take(self, rows: Tensor) -> "NodeTask":
        """Return the task of some of the owned nodes, bool (n,)."""
        masks = {name: mask[rows] for name, mask in self.masks.items()}
        node_id = None if self.node_id is None else self.node_id[rows]
        return replace(self, y=self.y[rows], masks=masks, node_id=node_id)


def choose_masks(shard: Shard, split: int) -> dict[str, Tensor]:
    """Return train, val and test masks of the owned nodes.

    Args:
        shard: A shard with labels.
        split: Which official split; without masks, the number of a seeded 50/20/30 split of the
            labelled nodes by original id, which is the same for every partition.

    Raises:
        ConfigError: There are no labels, or no such split.
    """
    meta = shard.meta
    y, _ = label_width(shard)
    if meta.num_splits == 0:
        return _hash_split(shard.node_id, y, split)
    check_split(split, meta.num_splits, meta.dataset)
    masks = {}
    for name in SPLITS:
        mask = shard.masks.get(f"{name}_mask")
        if mask is None:
            mask = torch.zeros(shard.num_owned, dtype=torch.bool, device=y.device)
        masks[name] = mask if mask.dim() == 1 else mask[:, split]
    return masks


def label_width(shard: Shard) -> tuple[Tensor, int]:
    """Return a shard's labels, and how many classes, labels or numbers there are.

    Raises:
        ConfigError: There are none.
    """
    y, num_classes = shard.y, shard.meta.num_classes
    if y is not None and y.is_floating_point():
        num_classes = 1 if y.dim() == 1 else y.size(1)
    if y is None or num_classes is None:
        raise ConfigError(
            f"the dataset {shard.meta.dataset!r} has no labels: put y beside the edges"
        )
    return y, num_classes


def is_labelled(y: Tensor) -> Tensor:
    """Return bool (n,): which nodes have all that is to be predicted."""
    if y.is_floating_point():
        return y.isfinite() if y.dim() == 1 else y.isfinite().all(1)
    return y >= 0 if y.dim() == 1 else torch.ones(len(y), dtype=torch.bool, device=y.device)


def _hash_split(node_id: Tensor, y: Tensor, split: int) -> dict[str, Tensor]:
    place = uniform_by_id(DrawKey(split, 0, SPLIT_SITE), node_id)
    train = place < SPLIT_FRACTIONS[0]
    test = place >= SPLIT_FRACTIONS[0] + SPLIT_FRACTIONS[1]
    labelled = is_labelled(y)
    return {
        "train": train & labelled,
        "val": ~train & ~test & labelled,
        "test": test & labelled,
    }


def make_task(
    shard: Shard,
    split: int,
    world: World,
    *,
    loss: str | LossFunction = "auto",
    metric: str | MetricFunction = "auto",
) -> NodeTask:
    """Collective. Check labels and masks on all ranks, and count the training nodes.

    Args:
        shard: This rank's shard.
        split: Which official split; see `choose_masks`.
        world: The ranks.
        loss: A name, or a function of one's own; see `node_loss`.
        metric: A name, or a function or object of one's own; see `make_metric`.

    Raises:
        ConfigError: On every rank: no labels, no such split, no training node anywhere, or a loss
            that is not for these labels.
    """
    with world.everywhere("choosing training nodes"):
        masks = choose_masks(shard, split)
        y, num_classes = label_width(shard)
        check_loss(loss, y)
    num_train = count_train(masks["train"], world)
    if num_train == 0:
        raise ConfigError(
            f"the dataset {shard.meta.dataset!r} has no training node in split {split}: give it a "
            "train_mask with at least one node"
        )
    return NodeTask(y, masks, num_train, num_classes, loss, metric, shard.node_id)


def count_train(mask: Tensor, world: World) -> int:
    """Collective. Return how many nodes a mask holds on all ranks."""
    count = mask.sum().view(1)
    world.transport.all_reduce(count).wait()
    return int(count.item())
