"""A learnt row for each node, which lives with the node's owner."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError
from gnn_dist.halo.node_rows import Lookup, NodeRows, attach
from gnn_dist.ops.draws import DrawKey, uniform_by_id
from gnn_dist.shard.shard import Shard

__all__ = ["NodeEmbedding", "draw_rows", "look_up", "read_rows"]

FIRST_SITE = 1 << 20  # draws of layers have lower sites


class NodeEmbedding(nn.Module):
    """Collective. A table with a learnt row for each node; each rank holds those of its nodes.

    Parameters, gradients and what an optimiser keeps are n rows on a rank, never N. Gradients of
    rows that other ranks read come back to the owner, so `weight.grad` is complete: leave it out of
    what is summed over ranks (`gd.parallelize` does).

    Args:
        shard: This rank's shard of the whole graph, of an edge-cut.
        world: The ranks.
        dim: Columns, d.
        seed: Of the first values: normal, of standard deviation `std`, drawn for each (seed,
            original id, column), so that they are the same for any partition and number of ranks.
        std: Standard deviation of the first values.
        sparse: Whether gradients are sparse, for `torch.optim.SparseAdam`, `RowAdam` and the like:
            an optimiser then touches no rows but those that some rank has read.
        dtype: Of the rows; by default that of the shard's features, if it has any.

    Attributes:
        weight: (n, d), the rows of this rank's nodes, in the order of `shard.node_id`.

    Raises:
        ConfigError: On every rank: the shards are of a vertex-cut, or of a subgraph.

    Example:
        `docs/embeddings.md` trains one; `tests/test_docs_examples.py` runs it.
    """

    def __init__(
        self,
        shard: Shard,
        world: World,
        dim: int,
        *,
        seed: int = 0,
        std: float = 1.0,
        sparse: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if dim < 1:
            raise ConfigError(f"dim must be at least 1, got {dim}")
        if dtype is None and isinstance(shard.features, Tensor):
            dtype = shard.features.dtype
        self.num_embeddings, self.embedding_dim, self.sparse = shard.meta.num_nodes, dim, sparse
        self.owners = NodeRows(shard, world)
        rows = draw_rows(shard.node_id, dim, seed=seed, std=std, dtype=dtype)
        self.weight = nn.Parameter(rows)
        attach(self.weight, self.owners)

    def forward(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows of this rank's nodes, or those of any nodes. Collective with ids.

        Args:
            ids: int64 or int32, of any shape: original ids, each rank its own, perhaps none. Every
                rank calls this, and a backward through the result.

        Returns:
            (n, d) in the order of `shard.node_id`, or (..., d).

        Raises:
            ConfigError: On every rank, if one asks for a node that the graph has not.
        """
        if ids is not None:
            return look_up(self.weight, ids, self.owners, sparse=self.sparse)
        if self.sparse:
            index = torch.arange(len(self.weight), device=self.weight.device)
            return F.embedding(index, self.weight, sparse=True)
        return self.weight.clone()  # as with nn.Embedding, what changes it in place is welcome

    def full_state_dict(self, out: Tensor | None = None) -> dict[str, Tensor]:
        """Collective. Return {"weight": (N, d)} in the order of original ids, on rank 0.

        It loads into `nn.Embedding(N, d)`, and into a `NodeEmbedding` on any number of ranks.

        Args:
            out: (N, d), on rank 0: where to write, such as a tensor over a mapped file.

        Returns:
            On other ranks (0, d), as a table need not fit into their memory.
        """
        return {"weight": self.owners.gather(self.weight, out)}

    def load_full_state_dict(self, state: dict[str, Tensor]) -> None:
        """Collective. Take each rank's rows from rank 0's {"weight": (N, d)}.

        Raises:
            ConfigError: On every rank: it has another shape.
        """
        table = state.get("weight")
        load_table(self.weight, table, self.owners, name="weight")

    def extra_repr(self) -> str:
        """Return what `repr` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}, rows here={len(self.weight)}"


def draw_rows(
    ids: Tensor,
    dim: int,
    *,
    seed: int = 0,
    std: float = 1.0,
    table: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Draw normal numbers that depend on the id, the column, the seed and the table alone.

    Columns 2k and 2k + 1 are sqrt(-2 log(1 - u)) times the cosine and the sine of 2 pi v, of two
    uniform numbers u, v in [0, 1) of the id (`uniform_by_id`, whose sites are columns).

    Args:
        ids: int64 (n,), original ids.
        dim: Columns, d.
        seed: Of the draws.
        std: Standard deviation.
        table: Tells tables of one seed apart.
        dtype: Of the result, drawn in float64; by default PyTorch's default dtype.

    Returns:
        (n, d), on the device of `ids`.

    Source: G. E. P. Box and M. E. Muller, "A Note on the Generation of Random Normal Deviates"
        (1958).
    """
    out = torch.empty((len(ids), dim), dtype=dtype or torch.get_default_dtype(), device=ids.device)
    for column in range(0, dim, 2):
        u, v = (uniform_by_id(DrawKey(seed, table, FIRST_SITE + column + i), ids) for i in (0, 1))
        radius, angle = std * torch.sqrt(-2.0 * torch.log1p(-u)), 2.0 * math.pi * v
        out[:, column] = radius * angle.cos()
        if column + 1 < dim:
            out[:, column + 1] = radius * angle.sin()
    return out


def look_up(
    weight: Tensor,
    ids: Tensor,
    owners: NodeRows,
    *,
    sparse: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Collective, and so is its backward. Return rows (..., d) of any nodes, by original id.

    A function of its own as `parallelize` has something to add to it.

    Args:
        weight: (n, d), the rows of this rank's nodes.
        ids: int64 or int32 (...), original ids.
        owners: Who has which row.
        sparse: Whether the gradient is sparse.
        padding_idx: An id whose row gets no gradient, or None.

    Raises:
        ConfigError: On every rank, if one asks for a node that the graph has not.
    """
    if has_torch_function((weight, ids)):
        options: dict[str, Any] = {"sparse": sparse, "padding_idx": padding_idx}
        found: Tensor = handle_torch_function(
            look_up, (weight, ids), weight, ids, owners, **options
        )
        return found
    return read_rows(weight, ids, owners.resolve(ids), owners, sparse=sparse, pad=padding_idx)


def read_rows(
    weight: Tensor,
    ids: Tensor,
    lookup: Lookup | None,
    owners: NodeRows,
    *,
    sparse: bool = False,
    pad: int | None = None,
) -> Tensor:
    """Collective, and so is its backward. Return rows (..., d) of ids (...) that were resolved."""
    if lookup is not None:
        rows = owners.read(weight, lookup, sparse=sparse)
    elif sparse:
        index = torch.arange(len(weight), device=weight.device)
        rows = F.embedding(index, weight, sparse=True)
    else:
        rows = weight.clone()
    if pad is not None:
        known = owners.node_id if lookup is None else lookup.ids
        rows = torch.where((known == pad)[:, None], rows.detach(), rows)
    return rows if lookup is None else rows.view(*ids.shape, weight.size(1))


def load_table(weight: Tensor, table: Tensor | None, owners: NodeRows, *, name: str) -> None:
    """Collective. Overwrite this rank's rows (n, d) with those of rank 0's table (N, d).

    Raises:
        ConfigError: On every rank, if rank 0 has no such table.
    """
    wanted = (owners.num_nodes, *weight.shape[1:])
    shape = None if table is None else tuple(table.shape)
    with owners.world.everywhere(f"loading {name}"):
        if owners.world.is_main and shape != wanted:
            raise ConfigError(
                f"{name} must have a row for each node in the order of original ids, {wanted}, "
                f"got {shape}"
            )
    with torch.no_grad():
        owners.scatter(table, weight.data)
