"""A forward of a parallelized model that is given graphs for DGL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call
from gnn_dist.parallel.dgl_graph import ShardGraph
from gnn_dist.parallel.dgl_kernels import shard_kernels

__all__ = ["inside_dgl", "uses_dgl"]


def uses_dgl(model: nn.Module, given: Any) -> bool:
    """Return whether a model is given, or keeps, a graph for DGL."""
    return any(isinstance(value, ShardGraph) for value in _values(model, given))


def _values(model: nn.Module, given: Any) -> list[Any]:
    """Return a model's arguments, and what its modules keep."""
    kept = [value for module in model.modules() for value in vars(module).values()]
    return [*tree_leaves(given), *kept]


@contextmanager
def inside_dgl(call: Call, model: nn.Module, given: Any) -> Iterator[None]:
    """Have the graphs that a model is given, or keeps, pass messages while this lasts.

    Args:
        call: The forward.
        model: Its modules may have kept graphs from their constructors.
        given: The model's arguments.

    Raises:
        ConfigError: One is a graph of DGL itself, or of another shard.
    """
    graphs = [value for value in _values(model, given) if _is_graph(value, call)]
    if not graphs:
        yield
        return
    before = call.ends
    # What has no mark and a row per edge may be weights that a layer has made, to drop some.
    call.ends = graphs[0].ends
    with shard_kernels(call):
        for graph in graphs:
            graph.calls.now = call
        try:
            yield
        finally:
            call.ends = before
            for graph in graphs:
                graph.calls.now = None


def _is_graph(value: Any, call: Call) -> bool:
    if isinstance(value, ShardGraph):
        if value.shard is not call.shard:
            raise ConfigError("the graph is of another shard than the model: use dgl_graph again")
        return True
    if any(base.__name__ == "DGLGraph" for base in type(value).__mro__):
        raise ConfigError(
            "a graph of DGL is this rank's alone: pass gnn_dist.dgl_graph(shard, world)"
        )
    return False
