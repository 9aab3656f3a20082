"""One minibatch: a rank's seeds, the blocks that layers run on, and the rows of the first one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gnn_dist.halo.block import Block
from gnn_dist.sampling.neighbor import Sample
from gnn_dist.shard.structure import Structure

__all__ = ["Batch", "blocks_of"]


@dataclass(frozen=True, eq=False)
class Batch:
    """A rank's part of a batch. Layers take `(rows, block)`, as in full-batch training.

    Attributes:
        step: Number of the batch over the whole run: what dropout draws by.
        blocks: One for each layer, in order. Destinations of the last are the seeds.
        x: (num_src, F), features of the first block's sources; None if the graph has none.
        y: (k, ...), labels of the seeds; None if the graph has none.
        n_id: int64 (num_src,), original ids of the first block's sources, seeds first.
        input_id: int64 (k,), where in `input_nodes`, ordered by original id, each seed is.
        size: Seeds of all ranks together, by which sums of losses are divided.
        e_id: For each block int64 (nnz,), numbers of the edges over all ranks; None unless asked
            for.
    """

    step: int
    blocks: list[Block]
    x: Tensor | None
    y: Tensor | None
    n_id: Tensor
    input_id: Tensor
    size: int
    e_id: list[Tensor] | None = None

    @property
    def batch_size(self) -> int:
        """Seeds of this rank, k: the first rows."""
        return self.input_id.numel()


def blocks_of(
    sample: Sample, src_id: Tensor, degree: Tensor | None, in_edges: Tensor | None
) -> list[Block]:
    """Return blocks without an exchange: all rows are at hand.

    Args:
        sample: What was drawn; weights of edges are in its `edges`, if the graph has any.
        src_id: int64, original ids of the first layer's sources.
        degree: float64, weighted in-degrees of these nodes in the whole graph; None if no layer
            normalises by them.
        in_edges: int64, how many in-edges these nodes have in the whole graph; None if no layer
            adds up over in-edges.
    """
    if degree is None:
        degree = torch.full((1,), torch.nan, dtype=torch.float64).expand(src_id.numel())
    blocks = []
    for i, csr in enumerate(sample.layers):
        represents = None
        if in_edges is not None:
            drawn = csr.counts if sample.drawn is None else sample.drawn[i]
            represents = in_edges[: csr.num_rows].double() / drawn.clamp(min=1)
        structure = Structure(
            csr=csr,
            src_id=src_id[: csr.num_cols],
            degree=degree[: csr.num_cols],
            edge_weight=sample.edges[i].get("edge_weight"),
            represents=represents,
        )
        share = None if sample.row_share is None else sample.row_share[i]
        blocks.append(Block(structure, row_share=share))
    return blocks
