"""Graph attention layers over `(x, block)`, equal to PyTorch Geometric's of the same name.

All in-edges of a destination are on its rank, so the softmax over them is exact; source rows of
other ranks arrive before it. Parameters have PyTorch Geometric's names and shapes.
"""

import math

import torch
from torch import Tensor, nn

from gnn_dist.halo.aggregate import all_sources
from gnn_dist.halo.attention import gat_of_linear, is_own_transpose
from gnn_dist.halo.block import Block
from gnn_dist.nn.conv import Rows, dense, linear
from gnn_dist.nn.dropout import Dropout
from gnn_dist.ops.attention import (
    AttentionDropout,
    dot_aggregate,
    gat_aggregate,
    gatv2_aggregate,
)
from gnn_dist.shard.structure import Structure

__all__ = ["GATConv", "GATv2Conv", "TransformerConv"]


def drawn_dropout(layer: Dropout, structure: Structure) -> AttentionDropout | None:
    """Return the dropout of coefficients that this use of a layer draws, in training mode."""
    if not layer.training or layer.p == 0.0:
        return None
    return AttentionDropout(layer.p, layer.next_key(), structure.src_id, structure.dst_id)


def glorot(attention: nn.Parameter) -> None:
    """Fill a vector per head (1, heads, F) by Glorot's rule over its last two dimensions."""
    bound = math.sqrt(6.0 / (attention.size(1) + attention.size(2)))
    nn.init.uniform_(attention, -bound, bound)


class GATConv(nn.Module):
    """Graph attention with self-loops.

    Source: "Graph Attention Networks" (Velickovic et al.), arXiv 1710.10903, equations 3 to 6.

    Args:
        in_channels: Width of the input.
        out_channels: Width of each head's output.
        heads: Number of heads.
        concat: Concatenate the heads' outputs; otherwise average them.
        negative_slope: Of the leaky ReLU.
        dropout: Probability of dropping an attention coefficient.
        bias: Add a learned bias.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.concat, self.negative_slope = heads, concat, negative_slope
        self.lin = nn.Linear(in_channels, heads * out_channels, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        width = heads * out_channels if concat else out_channels
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.attention_dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.lin.weight)
        glorot(self.att_src)
        glorot(self.att_dst)

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output."""
        return self.bias

    def forward(self, x: Rows, block: Block, *, skip_bias: bool = False) -> Tensor:
        """Collective. Map x (n, in_channels) to (n, heads * out_channels), or (n, out_channels)."""
        out = self._attended(x, block)
        out = out if self.concat else mean_of_heads(out, self.heads)
        if self.bias is None or skip_bias:
            return out
        # In place: nothing else reads the aggregate.
        return out.add_(self.bias.to(out.dtype))

    def _attended(self, x: Rows, block: Block) -> Tensor:
        """Collective. Return the heads' outputs (num_dst, heads * out_channels)."""
        structure, weight = block.structure, self.lin.weight
        dropout = drawn_dropout(self.attention_dropout, structure)
        if isinstance(x, Tensor):
            return gat_of_linear(
                x,
                block,
                weight=weight,
                att_src=self.att_src[0],
                att_dst=self.att_dst[0],
                negative_slope=self.negative_slope,
                dropout=dropout,
            )
        return gat_aggregate(
            structure.csr.with_self_loops,
            all_sources(linear(x, weight), block),
            self.att_src[0],
            self.att_dst[0],
            negative_slope=self.negative_slope,
            dropout=dropout,
            symmetric=is_own_transpose(structure),
        )


class GATv2Conv(nn.Module):
    """Graph attention whose ranking of sources depends on the destination, with self-loops.

    Source: "How Attentive are Graph Attention Networks?" (Brody, Alon, Yahav), arXiv 2105.14491,
    equation 7.

    Args:
        in_channels: Width of the input.
        out_channels: Width of each head's output.
        heads: Number of heads.
        concat: Concatenate the heads' outputs; otherwise average them.
        negative_slope: Of the leaky ReLU.
        dropout: Probability of dropping an attention coefficient.
        bias: Add learned biases.
        share_weights: Transform sources and destinations alike.
    """

    def __init__(  # noqa: PLR0913 - PyTorch Geometric's
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        bias: bool = True,
        share_weights: bool = False,
    ) -> None:
        super().__init__()
        self.concat, self.negative_slope = concat, negative_slope
        self.lin_l = nn.Linear(in_channels, heads * out_channels, bias=bias)
        self.lin_r = self.lin_l
        if not share_weights:
            self.lin_r = nn.Linear(in_channels, heads * out_channels, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        width = heads * out_channels if concat else out_channels
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.attention_dropout = Dropout(dropout)
        for layer in (self.lin_l, self.lin_r):
            nn.init.xavier_uniform_(layer.weight)
        glorot(self.att)

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output."""
        return self.bias

    def forward(self, x: Rows, block: Block) -> Tensor:
        """Collective. Map x (n, in_channels) to (n, heads * out_channels), or (n, out_channels)."""
        structure = block.structure
        rows = linear(x, self.lin_l.weight, self.lin_l.bias)
        here = rows[: block.num_dst]
        if self.lin_r is not self.lin_l:
            here = linear(own_rows(x, block), self.lin_r.weight, self.lin_r.bias)
        rows = all_sources(rows, block)
        out = gatv2_aggregate(
            structure.csr.with_self_loops,
            rows,
            here,
            self.att[0],
            negative_slope=self.negative_slope,
            dropout=drawn_dropout(self.attention_dropout, structure),
            symmetric=is_own_transpose(structure),
        )
        out = out if self.concat else mean_of_heads(out, self.att.size(1))
        return out if self.bias is None else out + self.bias.to(out.dtype)


class TransformerConv(nn.Module):
    """Multi-head dot-product attention over in-neighbours, beside a root term.

    out = W_skip x + attention, or with `beta` a learned mixture of the two.

    Source: "Masked Label Prediction: Unified Message Passing Model for Semi-Supervised
    Classification" (Shi et al.), arXiv 2009.03509, equations 3 to 5.

    Args:
        in_channels: Width of the input.
        out_channels: Width of each head's output.
        heads: Number of heads.
        concat: Concatenate the heads' outputs; otherwise average them.
        beta: Learn how much of the root term to use.
        dropout: Probability of dropping an attention coefficient.
        bias: Add learned biases.
        root_weight: Add the root term.
    """

    def __init__(  # noqa: PLR0913 - PyTorch Geometric's
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        *,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        root_weight: bool = True,
    ) -> None:
        super().__init__()
        self.heads, self.out_channels, self.concat = heads, out_channels, concat
        self.root_weight = root_weight
        width = heads * out_channels
        self.lin_key = nn.Linear(in_channels, width, bias=bias)
        self.lin_query = nn.Linear(in_channels, width, bias=bias)
        self.lin_value = nn.Linear(in_channels, width, bias=bias)
        out_width = width if concat else out_channels
        self.lin_skip = nn.Linear(in_channels, out_width, bias=bias)
        self.lin_beta = nn.Linear(3 * out_width, 1, bias=False) if beta and root_weight else None
        self.attention_dropout = Dropout(dropout)

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output."""
        return self.lin_skip.bias if self.root_weight and self.lin_beta is None else None

    def forward(self, x: Rows, block: Block) -> Tensor:
        """Collective. Map x (n, in_channels) to (n, heads * out_channels), or (n, out_channels)."""
        structure, own = block.structure, own_rows(x, block)
        query = linear(own, self.lin_query.weight, self.lin_query.bias)
        key, value = self._keys_and_values(x, block)
        out = dot_aggregate(
            structure.csr,
            query,
            key,
            value,
            heads=self.heads,
            scale=self.out_channels**-0.5,
            dropout=drawn_dropout(self.attention_dropout, structure),
            symmetric=is_own_transpose(structure),
        )
        out = out if self.concat else mean_of_heads(out, self.heads)
        return self._with_root(out, own) if self.root_weight else out

    def _keys_and_values(self, x: Rows, block: Block) -> tuple[Tensor, Tensor]:
        """Collective. Return both (num_src, heads * out_channels), side by side in memory."""
        both = (self.lin_key, self.lin_value)
        bias = None
        if self.lin_key.bias is not None:
            bias = torch.cat([layer.bias for layer in both])
        rows = linear(x, torch.cat([layer.weight for layer in both]), bias)
        key, value = torch.split(all_sources(rows, block), self.heads * self.out_channels, 1)
        return key, value

    def _with_root(self, out: Tensor, own: Rows) -> Tensor:
        root = linear(own, self.lin_skip.weight, self.lin_skip.bias)
        if self.lin_beta is None:
            return out + root
        share: Tensor = self.lin_beta(torch.cat([out, root, out - root], 1)).sigmoid()
        return share * root + (1.0 - share) * out


def mean_of_heads(out: Tensor, heads: int) -> Tensor:
    """Return the heads' mean (n, F) of rows (n, heads F)."""
    return out.view(out.size(0), heads, out.size(1) // heads).mean(1)


def own_rows(x: Rows, block: Block) -> Rows:
    """Return the rows of the destinations."""
    return x if x.size(0) == block.num_dst else dense(x)[: block.num_dst]
