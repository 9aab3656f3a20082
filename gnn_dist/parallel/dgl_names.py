"""How DGL names and counts nodes and edges, and what of it a shard's graph has no answer to."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.dgl_frames import Frame

__all__ = ["ALL", "EDGE_TYPE", "NODE_TYPE", "OwnCount", "View", "check_all", "check_type"]

NODE_TYPE, EDGE_TYPE = "_N", "_E"
ALL = "__ALL__"  # DGL's default for which nodes or edges


class View:
    """What DGL has at `graph.nodes` and `graph.edges`: a method, and data by type.

    Args:
        ids: The method.
        data: Rows by name.
    """

    def __init__(self, ids: Callable[..., Any], data: Frame) -> None:
        self._ids, self.data = ids, data

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return ids."""
        return self._ids(*args, **kwargs)

    def __getitem__(self, kind: Any) -> "View":
        check_type(kind)
        return self


class OwnCount(Tensor):
    """The number of nodes of a graph, as readouts and normalisations ask for it.

    They would divide by it, and it is this rank's. What belongs to the graph can be repeated.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.repeat_interleave, Tensor.repeat_interleave, Tensor.as_subclass):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise ConfigError(
            "batch_num_nodes is this rank's number of nodes, and not that of the graph: for "
            "readouts use torch.sum, torch.mean or torch.amax over rows, which are over all ranks"
        )


def check_type(given: Any) -> None:
    """Raise ConfigError unless a type is None or the only one there is."""
    known = (None, NODE_TYPE, EDGE_TYPE, (NODE_TYPE, EDGE_TYPE, NODE_TYPE))
    if not isinstance(given, str | tuple | None) or given not in known:
        raise ConfigError(f"a shard's graph has one type of nodes and of edges, got {given!r}")


def check_all(which: Any, what: str) -> None:
    """Raise ConfigError unless all nodes or edges are meant."""
    if not (isinstance(which, str) and which == ALL):
        raise ConfigError(
            f"{what} of some nodes or edges is not known on a shard: other ranks might have none "
            "of them, and not take part"
        )
