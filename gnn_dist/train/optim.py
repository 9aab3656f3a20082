"""Optimisers and schedulers by name."""

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gnn_dist.train.config import OptimConfig

__all__ = ["make_optimizer", "make_scheduler"]

SGD_MOMENTUM = 0.9


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig) -> Optimizer:
    """Make the optimiser that a configuration names."""
    made: dict[str, Callable[[], Optimizer]] = {
        "adam": lambda: torch.optim.Adam(
            parameters, lr=config.lr, weight_decay=config.weight_decay
        ),
        "adamw": lambda: torch.optim.AdamW(
            parameters, lr=config.lr, weight_decay=config.weight_decay
        ),
        "rmsprop": lambda: torch.optim.RMSprop(
            parameters, lr=config.lr, weight_decay=config.weight_decay
        ),
        "sgd": lambda: torch.optim.SGD(
            parameters, lr=config.lr, weight_decay=config.weight_decay, momentum=SGD_MOMENTUM
        ),
    }
    return made[config.optimizer]()


def make_scheduler(optimizer: Optimizer, config: OptimConfig, epochs: int) -> LambdaLR:
    """Make the scheduler that a configuration names; it steps once an epoch."""
    import math

    factors: dict[str, Callable[[int], float]] = {
        "constant": lambda epoch: 1.0,
        "cosine": lambda epoch: 0.5 * (1.0 + math.cos(math.pi * min(1.0, epoch / epochs))),
        "linear": lambda epoch: max(0.0, 1.0 - epoch / epochs),
        "step": lambda epoch: 0.5 ** (epoch // config.scheduler_step),
    }
    return LambdaLR(optimizer, factors[config.scheduler])
