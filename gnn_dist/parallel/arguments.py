"""What the arguments of a model are: rows of nodes, rows of edges, edge lists, or none of these."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.placement import Kind, Placement, mark
from gnn_dist.shard.shard import Shard

__all__ = ["mark_arguments"]


def mark_arguments(
    model: nn.Module, shard: Shard, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Mark the tensors that a model is called with.

    Raises:
        ConfigError: One is a graph of another kind than an edge list.
    """
    ends: list[Tensor] = []
    rows: list[tuple[str, Tensor]] = []
    for name, tensor in _named(model, args, kwargs):
        if tensor.layout != torch.strided or type(tensor).__name__ == "EdgeIndex":
            raise ConfigError(
                f"{name or 'an argument'} is a {type(tensor).__name__} ({tensor.layout}): pass the "
                "graph as shard.edge_index"
            )
        if _is_edge_list(name, tensor, shard):
            mark(tensor, Placement(Kind.ENDS, 1, tensor))
            ends.append(tensor)
        else:
            rows.append((name, tensor))
    for name, tensor in rows:
        mark(tensor, _rows_of(name, tensor, shard, ends))


def _named(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with the name of the parameter they are given as."""
    try:
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = dict(enumerate(args)) | kwargs
    for name, value in given.items():
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield str(name), leaf


def _is_edge_list(name: str, tensor: Tensor, shard: Shard) -> bool:
    if tensor is shard.edge_index:
        return True
    if tensor.dtype != torch.int64 or tensor.dim() != 2 or tensor.size(0) != 2:
        return False
    return shard.num_owned != 2 or "edge" in name or "adj" in name


def _rows_of(name: str, tensor: Tensor, shard: Shard, ends: list[Tensor]) -> Placement | None:
    """Return what the rows of an argument are; its name decides where sizes do not."""
    if tensor.dim() == 0:
        return None
    lists = [e for e in (*ends, shard.edge_index) if tensor.size(0) == e.size(1)]
    is_edges = bool(lists) and any(
        tensor is own for own in (shard.edge_weight, *shard.edge_data.values())
    )
    if tensor.size(0) == shard.num_owned and not is_edges and not (lists and "edge" in name):
        return Placement(Kind.NODES, 0)
    return Placement(Kind.EDGES, 0, lists[0]) if lists else None
