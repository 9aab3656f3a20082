"""Optimisers for tables of which a step touches some rows: what they keep lives with the rows.

    gradient, dense or sparse  -->  rows that are not all zero  -->  these rows' values and state

A row without a gradient stays as it is: no decay of its moments, no step. So a step costs what the
rows do that took part, and it does not matter how a table is spread over ranks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.errors import ConfigError

__all__ = ["RowAdagrad", "RowAdam"]

Params = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


class _RowOptimizer(Optimizer):
    """Steps over the rows that have a gradient."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step with the rows that have a gradient; those of zeros have none."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    self._start(parameter, state)
                rows, grad = touched_rows(parameter.grad)
                if group["weight_decay"]:
                    grad = grad.add(parameter[rows], alpha=group["weight_decay"])
                parameter.index_add_(0, rows, -group["lr"] * self._change(state, rows, grad, group))
        return loss

    def _start(self, parameter: Tensor, state: dict[str, Any]) -> None:
        """Make what is kept for the rows of a parameter (n, ...)."""
        raise NotImplementedError

    def _change(
        self, state: dict[str, Any], rows: Tensor, grad: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """Update what is kept for rows (k,); return their step (k, ...), of rate 1."""
        raise NotImplementedError


class RowAdam(_RowOptimizer):
    """Adam for tables: moments, and the number of steps, are of each row alone.

    `torch.optim.SparseAdam` counts steps of the whole table, so that a row that is read late takes
    a first step of another size than `lr`; here each row's first step has it, whenever it comes.

    Args:
        params: Parameters (n, ...) or groups of them; gradients may be dense or sparse.
        lr: Learning rate.
        betas: Of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: Times a row's value, added to its gradient, where it has one.

    Raises:
        ConfigError: An option is out of range.

    Example:
        >>> table = nn.Parameter(torch.ones(3, 1))
        >>> table.grad = torch.tensor([[2.0], [0.0], [-5.0]])
        >>> RowAdam([table], lr=0.5).step()
        >>> table.flatten().tolist()
        [0.5, 1.0, 1.5]

    Source: D. P. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization" (arXiv 1412.6980),
        algorithm 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ConfigError(f"betas must lie in [0, 1), got {betas}")
        _check_options(lr=lr, eps=eps, weight_decay=weight_decay)
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def _start(self, parameter: Tensor, state: dict[str, Any]) -> None:
        # An optimiser's load_state_dict leaves the dtype of what is called "step" alone.
        state["step"] = torch.zeros(len(parameter), dtype=torch.int64, device=parameter.device)
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)

    def _change(
        self, state: dict[str, Any], rows: Tensor, grad: Tensor, group: dict[str, Any]
    ) -> Tensor:
        state["step"][rows] += 1
        shape = (len(rows), *[1] * (grad.dim() - 1))
        step = state["step"][rows].double().view(shape)
        unbiased = []
        powers = (("exp_avg", grad), ("exp_avg_sq", grad * grad))
        for beta, (name, value) in zip(group["betas"], powers, strict=True):
            moment = state[name][rows].lerp_(value, 1.0 - beta)
            state[name][rows] = moment
            unbiased.append(moment / (1.0 - beta**step).to(grad.dtype))
        change: Tensor = unbiased[0] / (unbiased[1].sqrt() + group["eps"])
        return change


class RowAdagrad(_RowOptimizer):
    """Adagrad for tables, with one number kept for each row: the sum of its mean squared gradients.

    Args:
        params: Parameters (n, ...) or groups of them; gradients may be dense or sparse.
        lr: Learning rate.
        eps: Added to the root of the sum.
        weight_decay: Times a row's value, added to its gradient, where it has one.

    Raises:
        ConfigError: An option is out of range.

    Example:
        >>> table = nn.Parameter(torch.zeros(2, 2))
        >>> table.grad = torch.tensor([[3.0, 3.0], [0.0, 0.0]])
        >>> RowAdagrad([table], lr=1.0).step()
        >>> table.tolist()
        [[-1.0, -1.0], [0.0, 0.0]]

    Source: J. Duchi, E. Hazan and Y. Singer, "Adaptive Subgradient Methods for Online Learning and
        Stochastic Optimization" (2011), with one adaptive rate for a row in place of one for each
        of its columns.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        *,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        _check_options(lr=lr, eps=eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    def _start(self, parameter: Tensor, state: dict[str, Any]) -> None:
        state["sum"] = parameter.new_zeros(len(parameter))

    def _change(
        self, state: dict[str, Any], rows: Tensor, grad: Tensor, group: dict[str, Any]
    ) -> Tensor:
        square = (grad * grad).flatten(1).mean(1) if grad.dim() > 1 else grad * grad
        total = state["sum"][rows] + square
        state["sum"][rows] = total
        scale: Tensor = (total.sqrt() + group["eps"]).view(len(rows), *[1] * (grad.dim() - 1))
        return grad / scale


def touched_rows(grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows that a gradient (n, ...) has, int64 (k,), ascending, and their values.

    A row of zeros is none; one that is not finite is.
    """
    if grad.is_sparse:
        grad = grad.coalesce()
        index, values = grad.indices()[0], grad.values()
    else:
        index, values = None, grad
    is_touched = (values != 0).flatten(1).any(1) if values.dim() > 1 else values != 0
    rows = is_touched.nonzero().squeeze(1)
    return rows if index is None else index[rows], values[rows]


def _check_options(**options: float) -> None:
    for name, value in options.items():
        if not value >= 0.0:
            raise ConfigError(f"{name} must not be below 0, got {value}")
