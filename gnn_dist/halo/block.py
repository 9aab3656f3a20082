"""What a layer runs on: a structure, and how the sources that are not here get here."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from gnn_dist.halo.exchange import LayerExchange
from gnn_dist.shard.structure import Structure

__all__ = ["Block", "Constant"]


@dataclass(frozen=True, eq=False)
class Constant:
    """Rows that are the same in every step, such as input features, and what was made of them.

    What `aggregate` makes of such rows is made, and their halo exchanged, once and not once a step.

    Attributes:
        rows: The rows; they must not be changed.
        made: Results by how they were made.
    """

    rows: Tensor
    made: dict[Hashable, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Block:
    """The graph of one layer. Layers take `(x, block)`, in full-batch and minibatch alike.

    Attributes:
        structure: Destinations and their sources; shared by all layers of a shard.
        exchange: Brings the rows of sources beyond the destinations (one per layer); None when
            `x` already holds all sources' rows.
        constant: Rows that `x` may be in every step.
    """

    structure: Structure
    exchange: LayerExchange | None = None
    constant: Constant | None = None

    @property
    def num_dst(self) -> int:
        """Number of destinations, n."""
        return self.structure.num_dst

    @property
    def dst_id(self) -> Tensor:
        """int64 (n,), original ids of the destinations."""
        return self.structure.dst_id

    @property
    def num_rows_in(self) -> int:
        """Rows that `x` must have: destinations only when the others are exchanged."""
        return self.num_dst if self.exchange is not None else self.structure.num_src
