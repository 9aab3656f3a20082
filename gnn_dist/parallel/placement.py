"""What the rows of a tensor are, while a model written for one machine runs on a shard.

Every function of PyTorch that the model calls is seen (`tracing.py`). A tensor that has a row per
owned node or per local edge is marked as such, and so is what is computed from it; a tensor without
a mark is equal on all ranks. So the sum of a marked tensor over its rows is known to be one over
all ranks, and a row read at the source of an edge to be perhaps another rank's.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from torch import Tensor

__all__ = ["EDGE_LISTS", "Kind", "Placement", "edge_list", "mark", "placement"]

MARK = "_gnn_dist_placement"


class Kind(Enum):
    """What lies along a tensor's placed dimension."""

    NODES = "owned nodes"
    EDGES = "edges"
    SOME = "some of the nodes or edges"
    PICKED = "positions of owned nodes"  # values say which of the owned nodes
    SOURCES = "sources of edges"  # values are local ids, those of halo nodes among them
    TARGETS = "targets of edges"  # values are local ids of owned nodes
    ENDS = "ends of edges"  # (2, e): sources, targets
    REVERSED = "ends of reversed edges"  # (2, e): targets, sources

    @property
    def holds_ids(self) -> bool:
        """Whether the values are local ids of nodes."""
        return self in (Kind.SOURCES, Kind.TARGETS, Kind.ENDS, Kind.REVERSED)

    @property
    def by_edge(self) -> bool:
        """Whether there is something for each edge."""
        return self is Kind.EDGES or self.holds_ids


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a tensor's rows belong.

    Attributes:
        kind: What lies along the placed dimension.
        dim: The placed dimension, not negative.
        ends: int64 (2, e), sources and targets of the edges that rows are of; None if unknown, or
            if rows are no edges.
        guess: Whether it is only its size by which a fresh tensor was taken for rows of nodes.
    """

    kind: Kind
    dim: int
    ends: Tensor | None = None
    guess: bool = False

    def at(self, dim: int) -> "Placement":
        """Return the same along another dimension."""
        return replace(self, dim=dim)

    def rows_only(self) -> "Placement":
        """Return the placement of what was computed from ids: rows of edges."""
        return replace(self, kind=Kind.EDGES) if self.kind.holds_ids else self

    # A model that keeps a marked tensor (a normalised adjacency, say) can be copied and saved.
    def __deepcopy__(self, memo: object) -> "Placement":
        return self

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return type(None), ()


EDGE_LISTS = (Kind.ENDS, Kind.REVERSED)


def edge_list(tensor: Tensor, kind: Kind = Kind.ENDS, *, turned: bool = False) -> Placement:
    """Return the placement of an edge list (2, e).

    Args:
        tensor: The list.
        kind: `ENDS` or `REVERSED`.
        turned: Whether it is the other one of the two.
    """
    if turned:
        kind = Kind.REVERSED if kind is Kind.ENDS else Kind.ENDS
    return Placement(kind, 1, tensor if kind is Kind.ENDS else None)


def placement(value: Any) -> Placement | None:
    """Return the mark of a tensor, or None."""
    return getattr(value, MARK, None) if isinstance(value, Tensor) else None


def mark(tensor: Tensor, placed: Placement | None) -> Tensor:
    """Set or remove a tensor's mark; returns the tensor."""
    if placed is not None:
        setattr(tensor, MARK, placed)
    elif hasattr(tensor, MARK):
        delattr(tensor, MARK)
    return tensor
