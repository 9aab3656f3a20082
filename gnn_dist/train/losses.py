"""Losses: the usual ones by name, and the user's own.

    one process     sum of the losses of all training nodes / their number
    a rank          sum over its training nodes              / training nodes of all ranks

So a loss of one's own gives a loss for each row, or their sum, and never a mean: means over ranks
that own unequally many training nodes do not add up to the mean over all.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_dist.errors import ConfigError

__all__ = ["LOSSES", "LossFunction", "aligned", "check_adds_up", "check_loss", "node_loss"]

LossFunction = Callable[[Tensor, Tensor], Any]

# By what is predicted; the first is `auto`.
LOSSES = {
    "multiclass": ("cross_entropy",),
    "multilabel": ("bce",),
    "regression": ("mse", "l1"),
}
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
}


def node_loss(
    logits: Tensor,
    y: Tensor,
    mask: Tensor,
    num_train: int,
    *,
    loss: str | LossFunction = "auto",
) -> Tensor:
    """Return this rank's share of the loss: the sum over its training nodes / all training nodes.

    The shares of all ranks add up to the loss of one machine, whatever the partition; a rank
    without training nodes gives zero, through which gradients still flow.

    Args:
        logits: (n, C), of any floating dtype; for one number a node (n, 1) or (n,).
        y: int64 (n,), classes; bool (n, C), labels, whose binary losses are averaged over C; or
            floating (n,) or (n, T), numbers, whose losses are averaged over T.
        mask: bool (n,), training nodes.
        num_train: Training nodes of all ranks.
        loss: A name out of `LOSSES`; `auto` is cross entropy, binary cross entropy or the squared
            error. Or a function of (logits, y), both of training nodes alone: a tensor with a row
            of losses for each node, or the sum of them all. It is not called without rows.

    Raises:
        ConfigError: The loss is for other labels, or returns a mean, or the model's output does
            not have a column for each class or number.
    """
    picked, target = aligned(logits[mask], y[mask])
    picked = picked.to(torch.promote_types(picked.dtype, torch.float32))
    if callable(loss):
        return _sum_of(loss, picked, target) / num_train
    name = check_loss(loss, y)
    if name != "cross_entropy":
        target = target.to(picked.dtype)
    total = FUNCTIONS[name](picked, target, reduction="sum")
    return total / (num_train * (y.size(1) if y.dim() == 2 else 1))


def kind_of(y: Tensor) -> str:
    """Return `multiclass`, `multilabel` or `regression`."""
    if y.is_floating_point():
        return "regression"
    return "multilabel" if y.dim() == 2 else "multiclass"


def check_loss(loss: str | LossFunction, y: Tensor) -> str:
    """Return the name of a loss, `auto` resolved, or `custom` for the user's own.

    Raises:
        ConfigError: There is no such loss for these labels, or it is made to return a mean.
    """
    if callable(loss):
        reduction = getattr(loss, "reduction", "sum")
        if reduction not in ("sum", "none"):
            raise ConfigError(
                f"the loss must return a sum or a row for each node, got reduction={reduction!r}: "
                "make it with reduction='sum' or reduction='none'"
            )
        return "custom"
    names = LOSSES[kind_of(y)]
    if loss != "auto" and loss not in names:
        raise ConfigError(
            f"loss must be auto or one of {', '.join(names)} for {kind_of(y)} labels, got {loss!r}"
        )
    return names[0] if loss == "auto" else loss


def check_adds_up(loss: LossFunction, logits: Tensor, y: Tensor) -> None:
    """Refuse a loss that returns a mean, which does not grow with the number of nodes.

    Args:
        loss: The user's own.
        logits: (k, C), of this rank's training nodes.
        y: (k, ...), their labels.

    Raises:
        ConfigError: Twice the same rows have the loss of once.
    """
    if not len(y):
        return
    logits, y = aligned(logits.detach(), y)
    with torch.no_grad():
        once = _sum_of(loss, logits, y)
        twice = _sum_of(loss, torch.cat([logits, logits]), torch.cat([y, y]))
    if once != 0 and torch.isclose(once, twice, rtol=1e-4, atol=0.0):
        raise ConfigError(
            "the loss must be a sum over nodes, or have a row for each, got a mean: the same nodes "
            "twice have the loss of once. Return reduction='sum' or 'none'; the division by the "
            "training nodes of all ranks follows"
        )


def aligned(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a model's output in the shape of what it is compared with.

    Raises:
        ConfigError: It has not a column for each number to predict, or label.
    """
    if y.is_floating_point() and y.dim() == 1 and logits.dim() == 2 and logits.size(1) == 1:
        logits = logits.squeeze(1)
    if (y.is_floating_point() or y.dim() == 2) and logits.shape != y.shape:
        wanted = 1 if y.dim() == 1 else y.size(1)
        raise ConfigError(
            f"the model must give {wanted} column(s), one for each label or number of a node, got "
            f"output of shape {tuple(logits.shape)}"
        )
    return logits, y


def _sum_of(loss: LossFunction, logits: Tensor, y: Tensor) -> Tensor:
    """Return the sum over nodes of a loss of the user's own, averaged over its columns."""
    check_loss(loss, y)
    if not len(y):
        return logits.sum()  # of nothing, so that the backward of all ranks is the same
    value = loss(logits, y)
    if not isinstance(value, Tensor) or (value.dim() and len(value) != len(y)):
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"the loss must return a tensor: one number, or a row for each of {len(y)} nodes, got "
            f"{got}"
        )
    columns = value[0].numel() if value.dim() else 1
    return value.sum() / columns
