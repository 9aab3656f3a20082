"""What the arguments of a model are: rows of nodes, rows of edges, edge lists, or none of these."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.parallel.placement import Kind, Placement, mark
from gnn_dist.shard.shard import Shard

__all__ = ["Arguments"]

ENDS, NODES, EDGES, SAME = "ends", "nodes", "edges", "same"
OF_EDGES = ("edge", "weight", "attr")  # in the names that models give to what edges have
OPEN, OTHER = "open", "other"  # sizes fit both nodes and edges, or neither


class Arguments:
    """Knows what the arguments of a model are.

    A rank on which sizes leave it open (it has as many nodes as edges, perhaps none) is told by
    the others, once for each way in which the model is called.

    Args:
        model: The model.
        shard: This rank's shard.
        world: The ranks.
    """

    def __init__(self, model: nn.Module, shard: Shard, world: World) -> None:
        self._model, self._shard, self._world = model, shard, world
        self._agreed: dict[tuple[object, ...], list[str]] = {}

    def mark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Mark the tensors that the model is called with. Collective for a new way of calling it.

        Raises:
            ConfigError: One is a graph of another kind than an edge list.
        """
        given = list(_named(self._model, args, kwargs))
        way = tuple((name, tensor.dtype, tensor.dim()) for name, tensor in given)
        if way not in self._agreed:
            self._agreed[way] = self._ask([self._kind(name, tensor) for name, tensor in given])
        lists = [
            tensor
            for (_, tensor), kind in zip(given, self._agreed[way], strict=True)
            if kind == ENDS
        ]
        for (name, tensor), kind in zip(given, self._agreed[way], strict=True):
            mark(tensor, self._placement(name, tensor, kind, lists))

    def _ask(self, kinds: list[str]) -> list[str]:
        """Collective. Return what ranks say that know."""
        by_rank = self._world.transport.all_gather_object(kinds)
        agreed = []
        for votes in zip(*by_rank, strict=True):
            known = {vote for vote in votes if vote != OPEN}
            agreed.append(known.pop() if len(known) == 1 else votes[self._world.rank])
        return [NODES if kind == OPEN else kind for kind in agreed]

    def _kind(self, name: str, tensor: Tensor) -> str:
        """Return what an argument is, as far as this rank can tell."""
        shard = self._shard
        if tensor.layout != torch.strided or type(tensor).__name__ == "EdgeIndex":
            raise ConfigError(
                f"{name or 'an argument'} is a {type(tensor).__name__} ({tensor.layout}): pass the "
                "graph as shard.edge_index"
            )
        if tensor is shard.edge_index:
            return ENDS
        pairs = tensor.dtype == torch.int64 and tensor.dim() == 2 and tensor.size(0) == 2
        if pairs and (shard.num_owned != 2 or "edge" in name or "adj" in name):
            return ENDS
        if tensor.dim() == 0:
            return SAME
        if any(tensor is own for own in (shard.edge_weight, *shard.edge_data.values())):
            return EDGES
        if any(tensor is own for own in (shard.features, shard.y, *shard.masks.values())):
            return NODES
        nodes, edges = tensor.size(0) == shard.num_owned, tensor.size(0) == shard.num_edges
        if nodes and edges:
            return EDGES if any(word in name for word in OF_EDGES) else OPEN
        if nodes:
            return NODES
        return EDGES if edges else OTHER

    def _placement(
        self, name: str, tensor: Tensor, kind: str, lists: list[Tensor]
    ) -> Placement | None:
        if kind == ENDS:
            return Placement(Kind.ENDS, 1, tensor)
        if kind == NODES and tensor.size(0) == self._shard.num_owned:
            return Placement(Kind.NODES, 0)
        if kind in (EDGES, OTHER):
            for ends in (*lists, self._shard.edge_index):
                if tensor.size(0) == ends.size(1) and (kind == EDGES or ends.size(1) > 1):
                    return Placement(Kind.EDGES, 0, ends)
        return None


def _named(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with the name of the parameter they are given as."""
    try:
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        given = {**{f"argument {i}": value for i, value in enumerate(args)}, **kwargs}
    for name, value in given.items():
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield str(name), leaf
