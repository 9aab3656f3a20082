"""What DGL's graphs hold, and what they give to functions of the user's, on a shard."""

from collections.abc import Iterator, Mapping, MutableMapping

import torch
from torch import Tensor

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.placement import Kind, Placement, mark, placement

__all__ = ["Edges", "Frame", "Nodes"]


class Frame(MutableMapping[str, Tensor]):
    """Named rows of owned nodes, or of edges, marked as such; `ndata` and `edata`.

    Args:
        placed: What the rows are.
        num_rows: How many there are here.
        others: How many rows the other kind has. Where a rank has as many nodes as edges, an
            argument of the model may have been taken for the wrong kind: the frame knows better.
        values: What it holds at first.
    """

    def __init__(
        self,
        placed: Placement,
        num_rows: int,
        others: int,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._placed, self.num_rows, self._others = placed, num_rows, others
        self._values: dict[str, Tensor] = {}
        self.update(values or {})

    def copy(self) -> "Frame":
        """Return a frame of the same tensors."""
        return Frame(self._placed, self.num_rows, self._others, self._values)

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._values[name] = self._checked(name, value)

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _checked(self, name: str, value: Tensor) -> Tensor:
        kind = self._placed.kind
        if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != self.num_rows:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                f"{name!r} must have a row for each of this rank's {self.num_rows} {kind.value}, "
                f"got {shape}"
            )
        known = placement(value)
        if known is not None and known.dim == 0:
            if known.kind is kind or (known.kind.by_edge and kind is Kind.EDGES):
                return value
            if known.kind is not Kind.SOME and self.num_rows == self._others:
                return mark(value, self._placed)
        if known is not None:
            raise ConfigError(
                f"{name!r} must have a row for each of this rank's {kind.value}, got "
                f"{known.kind.value} along dimension {known.dim}"
            )
        return mark(value, self._placed)


class _Rows(Mapping[str, Tensor]):
    """A frame's rows by index, each read when it is asked for."""

    def __init__(self, frame: Mapping[str, Tensor], index: Tensor) -> None:
        self._frame, self._index = frame, index
        self._read: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._read:
            self._read[name] = torch.index_select(self._frame[name], 0, self._index)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame)

    def __len__(self) -> int:
        return len(self._frame)


class Edges:
    """All edges, for a function that makes messages. Rows of sources are fetched when read.

    Args:
        nodes: What nodes hold.
        data: What edges hold.
        src: int64 (e,), marked as sources of edges.
        dst: int64 (e,), marked as targets.
    """

    def __init__(self, nodes: Frame, data: Frame, src: Tensor, dst: Tensor) -> None:
        self.src, self.dst = _Rows(nodes, src), _Rows(nodes, dst)
        self.data = data

    def batch_size(self) -> int:
        """Return the number of edges here."""
        return self.data.num_rows

    def __len__(self) -> int:
        return self.data.num_rows


class Nodes:
    """Nodes, for a function that makes rows of them.

    Args:
        data: What they hold.
        mailbox: (k, d, ...) the messages of nodes that have d of them, in the order of edges.
        num_nodes: k.
    """

    def __init__(
        self, data: Mapping[str, Tensor], mailbox: Mapping[str, Tensor], num_nodes: int
    ) -> None:
        self.data, self.mailbox, self._num_nodes = data, mailbox, num_nodes

    def batch_size(self) -> int:
        """Return the number of nodes here."""
        return self._num_nodes

    def __len__(self) -> int:
        return self._num_nodes
