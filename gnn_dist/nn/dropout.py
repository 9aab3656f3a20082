"""Dropout by original id: the same masks for any number of ranks."""

from dataclasses import replace

from torch import Tensor, nn

from gnn_dist.errors import ConfigError
from gnn_dist.ops.draws import DrawKey, bias_relu_dropout

__all__ = ["Dropout", "set_step"]

SITES_PER_LAYER = 1 << 8


class Dropout(nn.Module):
    """Drop elements by the id of their row; call `set_step` before each training step.

    Args:
        p: Probability of dropping an element.

    Example:
        >>> import torch
        >>> layer = Dropout(0.5)
        >>> set_step(layer, seed=0, step=1)
        >>> ids = torch.tensor([7, 8])
        >>> rows = layer(torch.ones(2, 4), ids)
        >>> set_step(layer, seed=0, step=1)
        >>> bool((layer(torch.ones(1, 4), ids[1:]) == rows[1:]).all())
        True
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ConfigError(f"dropout must lie in [0, 1], got {p}")
        self.p = p
        self.key: DrawKey | None = None
        self.uses = 0  # since the step began: a module that a model uses twice draws twice

    def forward(
        self,
        x: Tensor,
        ids: Tensor,
        *,
        bias: Tensor | None = None,
        relu: bool = False,
        inplace: bool = False,
    ) -> Tensor:
        """Apply dropout in training mode; before it, in the same pass, a bias and a ReLU.

        Args:
            x: (n, ...), rows.
            ids: int64 (n,), original id of each row (or edge).
            bias: Of the shape of a row; added first.
            relu: Apply a ReLU.
            inplace: Write into `x`, which nobody else may need.

        Raises:
            ConfigError: `set_step` was never called, in training mode with p > 0.
        """
        if not self.training or self.p == 0.0:
            p, key = 0.0, DrawKey(0, 0, 0)
        else:
            p, key = self.p, self.next_key()
        return bias_relu_dropout(x, bias, ids=ids, p=p, key=key, relu=relu, inplace=inplace)

    def next_key(self) -> DrawKey:
        """Return the key of the next use, for what applies this dropout itself.

        Raises:
            ConfigError: `set_step` was never called.
        """
        if self.key is None:
            raise ConfigError(
                "dropout draws by (seed, step, layer): call gd.nn.set_step(model, seed=..., "
                "step=...) before each training step"
            )
        key = replace(self.key, site=self.key.site + self.uses)
        self.uses += 1
        return key

    def extra_repr(self) -> str:
        """Show the probability."""
        return f"p={self.p}"


def set_step(model: nn.Module, *, seed: int, step: int) -> None:
    """Tell every dropout of a model which draws come next.

    Args:
        model: A model; its `Dropout` modules are numbered in the order of `model.modules()`.
        seed: The run's seed.
        step: Optimiser steps so far (the epoch in full-batch training).
    """
    layers = [module for module in model.modules() if isinstance(module, Dropout)]
    for number, layer in enumerate(layers):
        layer.key, layer.uses = DrawKey(seed, step, number * SITES_PER_LAYER), 0
