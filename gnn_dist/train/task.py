"""Node classification: which nodes count, and the loss over all ranks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.shard.shard import Shard
from gnn_dist.train.config import check_split

__all__ = ["SPLITS", "NodeTask", "choose_masks", "make_task", "node_loss"]

SPLITS = ("train", "val", "test")
SPLIT_FRACTIONS = (0.5, 0.2)  # the rest are test nodes
SPLIT_SITE = 1 << 20  # apart from the sites of any model's draws


@dataclass(frozen=True, eq=False)
class NodeTask:
    """Labels and masks of the owned nodes.

    Attributes:
        y: int64 (n,), or bool (n, C).
        masks: By name of the split, bool (n,).
        num_train: Training nodes of all ranks.
        num_classes: C.
    """

    y: Tensor
    masks: dict[str, Tensor]
    num_train: int
    num_classes: int

    @property
    def multilabel(self) -> bool:
        """Whether a node has several labels."""
        return self.y.dim() == 2


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
    y, _ = _labels(shard)
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


def _labels(shard: Shard) -> tuple[Tensor, int]:
    if shard.y is None or shard.meta.num_classes is None:
        raise ConfigError(
            f"the dataset {shard.meta.dataset!r} has no labels: put y beside the edges"
        )
    return shard.y, shard.meta.num_classes


def _hash_split(node_id: Tensor, y: Tensor, split: int) -> dict[str, Tensor]:
    place = uniform_by_id(DrawKey(split, 0, SPLIT_SITE), node_id)
    train = place < SPLIT_FRACTIONS[0]
    test = place >= SPLIT_FRACTIONS[0] + SPLIT_FRACTIONS[1]
    labelled = (y >= 0) if y.dim() == 1 else torch.ones_like(train)
    return {
        "train": train & labelled,
        "val": ~train & ~test & labelled,
        "test": test & labelled,
    }


def make_task(shard: Shard, split: int, world: World) -> NodeTask:
    """Collective. Check labels and masks on all ranks, and count the training nodes.

    Raises:
        ConfigError: On every rank: no labels, no such split, or no training node anywhere.
    """
    with world.everywhere("choosing training nodes"):
        masks = choose_masks(shard, split)
        y, num_classes = _labels(shard)
    count = masks["train"].sum().view(1)
    world.transport.all_reduce(count).wait()
    num_train = int(count.item())
    if num_train == 0:
        raise ConfigError(
            f"the dataset {shard.meta.dataset!r} has no training node in split {split}: give it a "
            "train_mask with at least one node"
        )
    return NodeTask(y, masks, num_train, num_classes)


def node_loss(logits: Tensor, y: Tensor, mask: Tensor, num_train: int) -> Tensor:
    """Return this rank's share of the loss: the sum over its training nodes / all training nodes.

    The shares of all ranks add up to the loss of one machine, whatever the partition; a rank
    without training nodes gives zero, through which gradients still flow.

    Args:
        logits: (n, C), of any floating dtype.
        y: int64 (n,), classes; or bool (n, C), which sums a binary loss over the labels and
            averages it over C.
        mask: bool (n,), training nodes.
        num_train: Training nodes of all ranks.
    """
    picked, target = logits[mask], y[mask]
    picked = picked.to(torch.promote_types(picked.dtype, torch.float32))
    if y.dim() == 1:
        return F.cross_entropy(picked, target, reduction="sum") / num_train
    loss = F.binary_cross_entropy_with_logits(picked, target.to(picked.dtype), reduction="sum")
    return loss / (num_train * y.size(1))
