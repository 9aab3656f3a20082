"""Ready models: a stack of one kind of convolution, as `torch_geometric.nn.models` has them.

    convolution - [batch norm] - ReLU - dropout    for every layer but the last
    convolution                                    for the last

Names of parameters are those of PyTorch Geometric's models `GCN`, `GraphSAGE`, `GAT` and `GIN`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from gnn_dist.comm.transport import Transport
from gnn_dist.errors import ConfigError, nearest
from gnn_dist.halo.block import Block
from gnn_dist.nn.attention import GATConv
from gnn_dist.nn.conv import GCNConv, GINConv, Rows, SAGEConv
from gnn_dist.nn.dropout import Dropout
from gnn_dist.nn.norm import BatchNorm

__all__ = ["GNN", "MODELS", "ModelShape", "build_model"]


@dataclass(frozen=True)
class ModelShape:
    """What a ready model needs to know.

    Attributes:
        in_channels: Width of the features, F.
        hidden: Width between layers.
        out_channels: Width of the output, C.
        layers: Number of convolutions.
        dropout: After each layer but the last; in GAT also on attention coefficients.
        heads: Attention heads (GAT); must divide `hidden`.
        aggr: Reduction of GraphSAGE: `mean`, `sum` or `max`.
        batch_norm: Normalise between layers, over the nodes of all ranks.
    """

    in_channels: int
    hidden: int
    out_channels: int
    layers: int = 2
    dropout: float = 0.0
    heads: int = 1
    aggr: str = "mean"
    batch_norm: bool = False


class GNN(nn.Module):
    """A stack of convolutions.

    Args:
        shape: Widths and depth.
        make_conv: Makes a convolution: (in, out, is_last) -> module taking `(x, block)`.
        transport: The ranks that batch norm counts over; None for this one only.
    """

    def __init__(
        self,
        shape: ModelShape,
        make_conv: Callable[[int, int, bool], nn.Module],
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        inner = [shape.hidden] * (shape.layers - 1)
        widths = [shape.in_channels, *inner, shape.out_channels]
        last = shape.layers - 1
        self.convs = nn.ModuleList(
            make_conv(widths[i], widths[i + 1], i == last) for i in range(shape.layers)
        )
        self.norms = nn.ModuleList(
            BatchNorm(shape.hidden, transport) if shape.batch_norm and i < last else nn.Identity()
            for i in range(shape.layers)
        )
        self.dropouts = nn.ModuleList(Dropout(shape.dropout) for _ in range(last))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if isinstance(norm, BatchNorm):
                _fix_bias(conv)

    @property
    def num_blocks(self) -> int:
        """How many blocks the forward takes: one per convolution."""
        return len(self.convs)

    def forward(self, x: Rows, blocks: Sequence[Block]) -> Tensor:
        """Collective. Return the output rows (num_dst of the last block, out_channels).

        Args:
            x: (n, in_channels), features of the first block's destinations (of its sources where
                it has no exchange).
            blocks: One per convolution, in their order.
        """
        hidden: Rows = x
        for i, block in zip(range(self.num_blocks), blocks, strict=True):
            rows: Tensor = self.layer(i, hidden, block)
            hidden = rows
        return rows

    def layer(self, i: int, x: Rows, block: Block) -> Tensor:
        """Collective. Return what a layer makes of its input: the rows that enter the next one.

        Args:
            i: Which convolution, with what stands behind it.
            x: (n, width), as in `forward`.
            block: Its graph.
        """
        # What the activation can add in its own pass, the convolution leaves out.
        conv, late = self.convs[i], self._late_bias(i)
        rows: Tensor = conv(x, block) if late is None else conv(x, block, skip_bias=True)
        if i == len(self.dropouts):
            return rows
        norm = self.norms[i]
        out: Tensor = self.dropouts[i](
            norm(rows, block.counted) if isinstance(norm, BatchNorm) else rows,
            block.dst_id,
            bias=late,
            relu=True,
            # These convolutions do not look at their output again.
            inplace=late is not None,
        )
        return out

    def _late_bias(self, i: int) -> Tensor | None:
        """Return the bias of a convolution that goes straight into an activation."""
        conv = self.convs[i]
        if i == len(self.dropouts) or not isinstance(self.norms[i], nn.Identity):
            return None
        return conv.output_bias if isinstance(conv, GCNConv | SAGEConv | GATConv) else None


def _fix_bias(conv: nn.Module) -> None:
    """Hold at zero the bias of a convolution whose output is normalised.

    The norm takes it away again, so its gradient is rounding alone, which Adam would turn into
    steps of full size: parameters would depend on the number of ranks, though the loss does not.
    """
    bias = conv.output_bias
    if isinstance(bias, nn.Parameter):
        nn.init.zeros_(bias)
        bias.requires_grad_(False)


class MLP(nn.Module):
    """Linear, ReLU, linear: what GIN applies after its sum."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lins = nn.ModuleList(
            [nn.Linear(in_channels, out_channels), nn.Linear(out_channels, out_channels)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map x (n, in_channels) to (n, out_channels)."""
        out: Tensor = self.lins[1](self.lins[0](x).relu())
        return out


def _gcn(shape: ModelShape, transport: Transport | None) -> GNN:
    return GNN(shape, lambda i, o, _: GCNConv(i, o), transport)


def _sage(shape: ModelShape, transport: Transport | None) -> GNN:
    return GNN(shape, lambda i, o, _: SAGEConv(i, o, aggr=shape.aggr), transport)


def _gin(shape: ModelShape, transport: Transport | None) -> GNN:
    return GNN(shape, lambda i, o, _: GINConv(MLP(i, o)), transport)


def _gat(shape: ModelShape, transport: Transport | None) -> GNN:
    heads = shape.heads
    if heads < 1 or shape.hidden % heads:
        raise ConfigError(f"heads must divide hidden={shape.hidden}, got {heads}: change --heads")

    def make(in_channels: int, out_channels: int, is_last: bool) -> nn.Module:
        # The last layer averages its heads, so that its width is the number of classes.
        width = out_channels if is_last else out_channels // heads
        return GATConv(in_channels, width, heads, concat=not is_last, dropout=shape.dropout)

    return GNN(shape, make, transport)


MODELS: dict[str, Callable[[ModelShape, Transport | None], GNN]] = {
    "gat": _gat,
    "gcn": _gcn,
    "gin": _gin,
    "sage": _sage,
}


def build_model(name: str, shape: ModelShape, transport: Transport | None = None) -> GNN:
    """Make a ready model.

    Args:
        name: `gat`, `gcn`, `gin` or `sage`.
        shape: Widths and depth.
        transport: The ranks that batch norm counts over.

    Raises:
        ConfigError: An unknown name, or a shape that cannot be.
    """
    if name not in MODELS:
        raise ConfigError(f"no model {name!r}: {nearest(name, list(MODELS))}")
    for field, least in (("hidden", 1), ("layers", 1), ("in_channels", 1), ("out_channels", 1)):
        if getattr(shape, field) < least:
            raise ConfigError(f"{field} must be at least {least}, got {getattr(shape, field)}")
    return MODELS[name](shape, transport)
