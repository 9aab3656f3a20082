"""What a layer runs on: a structure, and how the sources that are not here get here."""

from dataclasses import dataclass

from torch import Tensor

from gnn_dist.halo.exchange import LayerExchange
from gnn_dist.shard.structure import Structure

__all__ = ["Block"]


@dataclass(frozen=True, eq=False)
class Block:
    """The graph of one layer. Layers take `(x, block)`, in full-batch and minibatch alike.

    Attributes:
        structure: Destinations and their sources; shared by all layers of a shard.
        exchange: Brings the rows of sources beyond the destinations (one per layer); None when
            `x` already holds all sources' rows.
    """

    structure: Structure
    exchange: LayerExchange | None = None

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
