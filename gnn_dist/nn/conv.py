"""Graph convolutions over `(x, block)`, equal to PyTorch Geometric's of the same name.

Parameters have PyTorch Geometric's names and shapes, so that a `state_dict` goes either way.
"""

import torch
from torch import Tensor, nn

from gnn_dist.errors import ConfigError
from gnn_dist.halo.aggregate import REDUCES, aggregate
from gnn_dist.halo.ahead import depart
from gnn_dist.halo.block import Block
from gnn_dist.ops.linear import linear as linear_rows
from gnn_dist.ops.linear import linear_onto, linear_pair
from gnn_dist.ops.spmm import SparseRows

__all__ = ["GCNConv", "GINConv", "Rows", "SAGEConv", "dense", "linear"]

Rows = Tensor | SparseRows
LINEAR = ("sum", "mean")  # reductions
PRODUCT_COST = 0.1  # of a multiplication in a matrix product, relative to an element of a sum
CONSTANT_WIDTH = 2  # memory for a sum that is kept, relative to the layer's output


def linear(x: Rows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias for dense or sparse rows x (n, F) and weight (K, F)."""
    if not isinstance(x, SparseRows):
        return linear_rows(x, weight, bias)
    out = x.mm(weight.t())
    return out if bias is None else out + bias


def dense(x: Rows) -> Tensor:
    """Return rows as a dense tensor."""
    return x.dense if isinstance(x, SparseRows) else x


def transforms_first(x: Rows, weight: Tensor, block: Block) -> bool:
    """Return whether to multiply by weight (K, F) before rows are summed; the two commute.

    So it is where it makes rows shorter, unless they are the same in every step: then their sum is
    made once and for all, if it is not much wider than what would be summed in each step.
    """
    if isinstance(x, SparseRows):
        return True
    width, width_out = weight.size(1), weight.size(0)
    if block.is_constant(x):
        return width > CONSTANT_WIDTH * width_out
    num_src, num_dst = block.structure.num_src, block.num_dst
    if block.exchange is None and num_src > num_dst:
        # A sampled block: what is transformed first are many more rows than what is summed.
        nnz = block.structure.csr.nnz
        first = PRODUCT_COST * num_src * width * width_out + nnz * width_out
        after = PRODUCT_COST * num_dst * width * width_out + nnz * width
        return first < after
    return width_out <= width


class GCNConv(nn.Module):
    """Graph convolution with symmetric normalisation by the whole graph's degrees.

    out = D^-1/2 (A + I) D^-1/2 X W + b; edge weights, where the graph has them, stand in A.

    Source: "Semi-Supervised Classification with Graph Convolutional Networks" (Kipf, Welling),
    arXiv 1609.02907, equation 2.

    Args:
        in_channels: Width of the input.
        out_channels: Width of the output.
        bias: Add a learned bias.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = True) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        nn.init.xavier_uniform_(self.lin.weight)

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output."""
        return self.bias

    def forward(self, x: Rows, block: Block, *, skip_bias: bool = False) -> Tensor:
        """Collective. Map x (n, in_channels) to (n, out_channels), without the bias if asked."""
        structure, weight = block.structure, self.lin.weight

        def normalised_sum(rows: Tensor) -> Tensor:
            return aggregate(
                rows,
                block,
                weight=structure.loop_edge_weight,
                scale=structure.gcn_scale,
                self_loops=True,
            )

        if transforms_first(x, weight, block):
            out = normalised_sum(linear(x, weight))
        else:
            out = linear(normalised_sum(dense(x)), weight)
        return out if self.bias is None or skip_bias else out + self.bias


class SAGEConv(nn.Module):
    """GraphSAGE: out = W_l reduce(x of in-neighbours) + b + W_r x.

    Source: "Inductive Representation Learning on Large Graphs" (Hamilton, Ying, Leskovec),
    arXiv 1706.02216, algorithm 1. Edge weights are not used.

    Args:
        in_channels: Width of the input.
        out_channels: Width of the output.
        aggr: `mean`, `sum` (also called `add`), `max` or `min`.
        root_weight: Add the term W_r x.
        bias: Add a learned bias.

    Raises:
        ConfigError: `aggr` is unknown.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        aggr: str = "mean",
        root_weight: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.reduce = "sum" if aggr == "add" else aggr
        if self.reduce not in REDUCES:
            raise ConfigError(f"aggr must be one of {', '.join(REDUCES)}, got {aggr!r}")
        self.lin_l = nn.Linear(in_channels, out_channels, bias=bias)
        self.lin_r = nn.Linear(in_channels, out_channels, bias=False) if root_weight else None

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output."""
        return self.lin_l.bias

    def forward(self, x: Rows, block: Block, *, skip_bias: bool = False) -> Tensor:
        """Collective. Map x (n, in_channels) to (num_dst, out_channels); skip the bias if asked."""
        weight, bias = self.lin_l.weight, None if skip_bias else self.lin_l.bias
        transform_first = self.reduce in LINEAR and transforms_first(x, weight, block)
        if self.lin_r is None:
            return self._without_root(x, block, bias, transform_first)
        own = x if x.size(0) == block.num_dst else dense(x)[: block.num_dst]
        if not transform_first:
            rows = aggregate(dense(x), block, reduce=self.reduce)
            return linear_onto(linear(own, self.lin_r.weight, bias), rows, weight)
        block = block.with_ahead()
        if own is x and isinstance(x, Tensor):
            rows, root = linear_pair(x, weight, self.lin_r.weight, bias, use=block.ahead)
        else:
            rows = depart(linear(x, weight), block.ahead)
            root = linear(own, self.lin_r.weight, bias)
        return aggregate(rows, block, reduce=self.reduce, onto=root)

    def _without_root(
        self, x: Rows, block: Block, bias: Tensor | None, transform_first: bool
    ) -> Tensor:
        """Collective. Map x as `forward` does without the term W_r x."""
        weight = self.lin_l.weight
        if not transform_first:
            return linear(aggregate(dense(x), block, reduce=self.reduce), weight, bias)
        out = aggregate(linear(x, weight), block, reduce=self.reduce)
        return out if bias is None else out + bias


class GINConv(nn.Module):
    """Graph isomorphism network: out = nn((1 + eps) x + sum of x of in-neighbours).

    Source: "How Powerful are Graph Neural Networks?" (Xu, Hu, Leskovec, Jegelka),
    arXiv 1810.00826, equation 4.1.

    Args:
        nn_module: What is applied to the sum.
        eps: Initial eps.
        train_eps: Learn eps.
    """

    def __init__(self, nn_module: nn.Module, *, eps: float = 0.0, train_eps: bool = False) -> None:
        super().__init__()
        self.nn = nn_module
        self.eps: Tensor
        value = torch.full((1,), eps)
        if train_eps:
            self.eps = nn.Parameter(value)
        else:
            self.register_buffer("eps", value)

    @property
    def output_bias(self) -> Tensor | None:
        """What is added to every row of the output, if the last module of `nn` is linear."""
        *_, last = self.nn.modules()
        return last.bias if isinstance(last, nn.Linear) else None

    def forward(self, x: Rows, block: Block) -> Tensor:
        """Collective. Map x (n, in_channels) to nn's output for each destination."""
        rows = dense(x)
        own = rows[: block.num_dst] * (1.0 + self.eps).to(rows.dtype)
        if block.is_constant(rows):
            out = own + aggregate(rows, block)
        else:
            out = aggregate(rows, block, onto=own)
        result: Tensor = self.nn(out)
        return result
