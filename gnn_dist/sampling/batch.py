"""One minibatch: a rank's seeds, the blocks that layers run on, and the rows of the first one."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnn_dist.halo.block import Block
from gnn_dist.interop import import_dgl
from gnn_dist.sampling.neighbor import Sample
from gnn_dist.sampling.subgraph import Subgraph, subgraph_of
from gnn_dist.shard.structure import Structure

if TYPE_CHECKING:
    from torch_geometric.data import Data

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
        sample: What was drawn.
    """

    step: int
    blocks: list[Block]
    x: Tensor | None
    y: Tensor | None
    n_id: Tensor
    input_id: Tensor
    size: int
    sample: Sample

    @property
    def batch_size(self) -> int:
        """Seeds of this rank, k: the first rows."""
        return self.input_id.numel()

    @property
    def e_id(self) -> list[Tensor] | None:
        """For each block int64 (nnz,), numbers of its edges over all ranks, if asked for."""
        edges = self.sample.edges
        return [values["e_id"] for values in edges] if "e_id" in edges[0] else None

    @cached_property
    def subgraph(self) -> Subgraph:
        """The batch as one graph; `x[subgraph.rows]` are its features."""
        return subgraph_of(self.sample)

    def to_pyg(self) -> "Data":
        """Return the batch as PyTorch Geometric's NeighborLoader has it: the seeds come first.

        Attributes are `x`, `y` (of the seeds), `edge_index`, values of edges, `n_id`, `e_id` if
        asked for, `input_id`, `batch_size`, `num_sampled_nodes` and `num_sampled_edges`. A node
        that is found at two depths is there twice.
        """
        from torch_geometric.data import Data

        graph = self.subgraph
        return Data(
            x=None if self.x is None else self.x.index_select(0, graph.rows),
            y=self.y,
            edge_index=graph.edge_index,
            n_id=self.n_id[graph.rows],
            input_id=self.input_id,
            batch_size=self.batch_size,
            num_sampled_nodes=graph.num_nodes,
            num_sampled_edges=graph.num_edges,
            num_nodes=graph.rows.numel(),
            **graph.edges,
        )

    def to_dgl(self) -> list[Any]:
        """Return the blocks as DGL's: `x` of the first's sources, `y` of the last's destinations.

        Raises:
            ConfigError: DGL is not installed.
        """
        dgl = import_dgl("blocks of DGL need DGL")
        made = []
        for block in self.blocks:
            csr = block.structure.csr
            sources: Any = ("csc", (csr.indptr.to(csr.indices.dtype), csr.indices, []))
            made.append(
                dgl.create_block(sources, num_src_nodes=csr.num_cols, num_dst_nodes=csr.num_rows)
            )
        made[0].srcdata[dgl.NID] = self.n_id
        if self.x is not None:
            made[0].srcdata["x"] = self.x
        if self.y is not None:
            made[-1].dstdata["y"] = self.y
        return made


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
