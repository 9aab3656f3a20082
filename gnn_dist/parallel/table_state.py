"""Checkpoints, gradients and their norm, where a model has tables of which each rank holds rows.

In a checkpoint rows are in the order of original ids, so that it fits the plain model, and any
number of ranks. The table, and what an optimiser keeps for it, is put together on rank 0 alone.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.node_rows import NodeRows, rows_of
from gnn_dist.nn.embedding import load_table
from gnn_dist.parallel.tables import tables

__all__ = [
    "clip_gradients",
    "load_optimizer",
    "own_gradient",
    "own_state",
    "whole_optimizer",
    "whole_state",
]


def whole_state(model: nn.Module, state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Collective if the model has tables. Put whole tables into a model's state, on rank 0."""
    gathered: dict[nn.Parameter, Tensor] = {}
    for name, parameter, owners in tables(model):
        if parameter not in gathered:
            gathered[parameter] = owners.gather(parameter)
        state[prefix + name] = gathered[parameter]
    return state


def own_state(model: nn.Module, state: dict[str, Any], world: World) -> dict[str, Any]:
    """Collective if the model has tables. Return a state with this rank's rows in their place.

    Raises:
        ConfigError: On every rank, if a table of rank 0 has another shape.
    """
    found = list(tables(model))
    if not found:
        return state
    state = dict(state)
    given = world.transport.all_gather_object([name in state for name, _, _ in found])[0]
    for (name, parameter, owners), is_given in zip(found, given, strict=True):
        table = state.pop(name, None)
        if is_given:  # what is not given, the module's own load_state_dict tells
            rows = torch.empty_like(parameter)
            load_table(rows, table, owners, name=name)
            state[name] = rows
    return state


def own_gradient(parameter: nn.Parameter, *, sparse: bool) -> Tensor:
    """Return the gradient of this rank's rows, zeros for none, of a table that is in use."""
    if parameter.grad is not None:
        return parameter.grad
    layout = torch.sparse_coo if sparse else torch.strided
    return torch.zeros_like(parameter, layout=layout, requires_grad=False)


def clip_gradients(model: nn.Module, world: World, *, max_norm: float, norm_type: float) -> Tensor:
    """Collective. Scale gradients so that the norm of all of them is at most `max_norm`."""
    if not norm_type > 0.0:
        raise ConfigError(f"norm_type must be above 0, got {norm_type}")
    largest = math.isinf(norm_type)
    norms: dict[bool, list[float]] = {False: [0.0], True: [0.0]}  # of tables, each its own rows
    grads = [(rows_of(p) is not None, p.grad) for p in model.parameters() if p.grad is not None]
    for of_table, grad in grads:
        values = grad.coalesce().values() if grad.is_sparse else grad
        if values.numel():
            norm = float(torch.linalg.vector_norm(values, norm_type, dtype=torch.float64))
            norms[of_table].append(norm if largest else norm**norm_type)
    put_together = max if largest else sum
    own = torch.tensor([float(put_together(norms[True]))], dtype=torch.float64)
    own = own.to(world.transport.device)
    world.transport.all_reduce(own, "max" if largest else "sum").wait()
    total = float(put_together([*norms[False], float(own)]))
    total = total if largest else total ** (1.0 / norm_type)
    factor = min(1.0, max_norm / (total + 1e-6))
    with torch.no_grad():
        for _, grad in grads:
            grad.mul_(factor)
    return torch.tensor(total, dtype=torch.float64)


def whole_optimizer(optimizer: Optimizer, world: World) -> dict[str, Any]:
    """Collective. Return an optimiser's state with what it keeps for all rows, on rank 0."""
    state = optimizer.state_dict()
    kept = {index: dict(values) for index, values in state["state"].items()}
    for index, name, owners in _row_states(optimizer, world):
        kept[index][name] = owners.gather(kept[index][name])
    return {**state, "state": kept}


def load_optimizer(optimizer: Optimizer, state: dict[str, Any], world: World) -> None:
    """Collective. Load rank 0's `whole_optimizer`, each rank the rows of its nodes.

    Raises:
        ConfigError: On every rank, if rank 0's state has other parameters or other rows.
    """
    plain: dict[str, Any] | None = None
    with world.everywhere("loading the state of an optimiser"):
        if world.is_main:
            plain = _without_rows(optimizer, state)
    plain = world.transport.all_gather_object(plain)[0]
    for index, parameter in enumerate(_parameters(optimizer)):
        owners = rows_of(parameter)
        if owners is None:
            continue
        for name, value in plain["state"].get(index, {}).items():
            if isinstance(value, _Rows):
                rows = parameter.new_empty((len(parameter), *value.shape), dtype=value.dtype)
                table = state["state"][index][name] if world.is_main else None
                load_table(rows, table, owners, name=f"{name} of parameter {index}")
                plain["state"][index][name] = rows
    optimizer.load_state_dict(plain)


class _Rows:
    """Stands for what is kept for each row, in a state that goes to all ranks."""

    def __init__(self, table: Tensor) -> None:
        self.shape, self.dtype = tuple(table.shape[1:]), table.dtype


def _without_rows(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a whole state but for its tables, in whose place is what they are."""
    groups = [len(g["params"]) for g in optimizer.param_groups]
    theirs = [len(g["params"]) for g in state["param_groups"]]
    if groups != theirs:
        raise ConfigError(
            f"the optimiser has groups of {groups} parameters, its state is of {theirs}"
        )
    parameters = _parameters(optimizer)
    kept = {}
    for index, values in state["state"].items():
        owners = rows_of(parameters[index])
        kept[index] = {
            name: _Rows(value)
            if owners is not None and isinstance(value, Tensor) and value.dim()
            else value
            for name, value in values.items()
        }
    return {"param_groups": state["param_groups"], "state": kept}


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _row_states(optimizer: Optimizer, world: World) -> list[tuple[int, str, NodeRows]]:
    """Collective. Return (number of the parameter, name, owners) of what is kept for each row.

    Raises:
        ConfigError: On every rank: some ranks keep what others do not, or not a row for each.
    """
    found: list[tuple[int, str, NodeRows]] = []
    fits = True
    for index, parameter in enumerate(_parameters(optimizer)):
        owners = rows_of(parameter)
        for name, value in optimizer.state.get(parameter, {}).items() if owners else ():
            if owners is not None and isinstance(value, Tensor) and value.dim():
                found.append((index, str(name), owners))
                fits &= value.size(0) == len(owners.node_id)
    mine = [fits, [place[:2] for place in found]]
    every = world.transport.all_gather_object(mine)
    if any(other != [True, mine[1]] for other in every):
        raise ConfigError(
            "an optimiser must keep for a table of nodes single numbers, or a row for each of its "
            f"rows, the same on all ranks; by rank: {every}"
        )
    return found
