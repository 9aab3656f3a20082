"""Optimisers and schedulers by name, and gradients over all ranks."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from gnn_dist.comm.transport import Transport
from gnn_dist.train.config import OptimConfig

__all__ = ["FlatGradients", "make_optimizer", "make_scheduler"]

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


class FlatGradients:
    """All gradients of a model in one buffer, so that one message sums them over the ranks.

    The parameters' `grad` are views of the buffer: nothing is copied. One more element carries a
    number along (the loss).

    Args:
        parameters: Parameters of one dtype and device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        size = sum(p.numel() for p in self._parameters)
        first = self._parameters[0]
        self._buffer = torch.zeros(size + 1, dtype=first.dtype, device=first.device)
        self._attach()

    def zero(self) -> None:
        """Set all gradients to zero before a backward."""
        self._buffer.zero_()
        self._attach()

    def sum_over_ranks(self, number: Tensor, transport: Transport) -> float:
        """Collective. Sum the gradients, and one number, over all ranks; return the number."""
        self._buffer[-1] = number
        transport.all_reduce(self._buffer).wait()
        return float(self._buffer[-1].item())

    def _attach(self) -> None:
        start = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            parameter.grad = self._buffer[start:stop].view_as(parameter)
            start = stop
