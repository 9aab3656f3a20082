"""What a layer runs on: a structure, and how the sources that are not here get here."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnn_dist.errors import GraphError
from gnn_dist.halo.ahead import Ahead
from gnn_dist.halo.exchange import LayerExchange
from gnn_dist.shard.structure import Structure

__all__ = ["Block", "Constant"]


@dataclass(frozen=True, eq=False)
class Constant:
    """Rows that are the same in every step, such as input features, and what was made of them.

    What `aggregate` makes of such rows is made, and their halo exchanged, once and not once a step.

    Attributes:
        rows: The rows; they must not be changed.
        exchange: Brings their halo rows, exactly: being sent once, they need no cheaper way. None
            takes the block's own exchange.
        made: Results by how they were made, with the versions of results and rows then.
    """

    rows: Tensor
    exchange: LayerExchange | None = None
    made: dict[Hashable, tuple[Tensor, int, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Block:
    """The graph of one layer. Layers take `(x, block)`, in full-batch and minibatch alike.

    Attributes:
        structure: Destinations and their sources; shared by all layers of a shard.
        exchange: Brings the rows of sources beyond the destinations (one per layer); None when
            `x` already holds all sources' rows.
        constant: Rows that `x` may be in every step.
        ahead: Posts the rows that are to be aggregated before they are; None: `aggregate` does.
        row_share: Floating (num_dst,), of a minibatch's block: one by how many ranks have the
            destination, so that over all ranks each counts once. None where each is on one rank.
    """

    structure: Structure
    exchange: LayerExchange | None = None
    constant: Constant | None = None
    ahead: Ahead | None = None
    row_share: Tensor | None = None

    def with_ahead(self) -> "Block":
        """Return the block for one aggregation, a sum or mean, whose rows leave ahead of it."""
        if self.exchange is None or self.exchange.is_alone or self.exchange.clones is not None:
            return self  # no rows travel; on a vertex-cut their sums do
        return replace(self, ahead=Ahead(self.exchange))

    def is_constant(self, x: object) -> bool:
        """Return whether rows are the constant ones, and have no gradient."""
        rows = None if self.constant is None else self.constant.rows
        return x is rows and rows is not None and not rows.requires_grad

    def once(self, key: Hashable, make: Callable[["Block"], Tensor]) -> Tensor:
        """Collective. Return what was made of the constant rows, making it the first time.

        Args:
            key: How it is made; the same on every rank.
            make: Makes it on the block without a constant; collective.

        Raises:
            GraphError: The constant rows, or what was made of them, were changed in place.
        """
        if self.constant is None:
            return make(self)
        made, version = self.constant.made, self.constant.rows._version
        if key not in made:
            # Tensors made in inference mode could not be saved for a backward.
            with torch.inference_mode(mode=False):
                exchange = self.constant.exchange or self.exchange
                result = make(replace(self, constant=None, exchange=exchange))
            made[key] = (result, result._version, version)
        result, *versions = made[key]
        if [result._version, version] != versions:
            raise GraphError(
                "input features, and what a layer first makes of them, must not be changed in "
                "place: clone them before"
            )
        return result

    @property
    def num_dst(self) -> int:
        """Number of destinations, n."""
        return self.structure.num_dst

    @property
    def dst_id(self) -> Tensor:
        """int64 (n,), original ids of the destinations."""
        return self.structure.dst_id

    @property
    def num_owned(self) -> int:
        """Number of destinations, the first ones, that no other rank has as destinations too."""
        clones = self.structure.clones
        return self.num_dst if clones is None else clones.num_roots

    @property
    def counted(self) -> int | Tensor:
        """What of the destinations counts in statistics of all ranks; see `BatchNorm.forward`."""
        return self.num_owned if self.row_share is None else self.row_share

    @property
    def num_rows_in(self) -> int:
        """Rows that `x` must have: those of owned sources where the others are exchanged."""
        if self.exchange is None or self.exchange.plan.clones:
            return self.structure.num_src
        return self.exchange.plan.num_owned
