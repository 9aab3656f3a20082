"""Distributed training of graph neural networks on one large graph.

Names are imported on first use, so that `import gnn_dist` stays cheap: torch is loaded only by
what needs it.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Graph": "gnn_dist.graph",
    "Partition": "gnn_dist.partition",
    "World": "gnn_dist.comm.world",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type depends on the name
    if name not in _HOME:
        raise AttributeError(f"module 'gnn_dist' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
