"""Scores of pairs of nodes, from the rows that a model gives them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gnn_dist.errors import ConfigError
from gnn_dist.halo.block import Block
from gnn_dist.nn.conv import Rows

__all__ = ["DotProduct", "LinkMLP", "LinkModel"]


class DotProduct(nn.Module):
    """The inner product of both rows.

    Example:
        >>> score = DotProduct()
        >>> score(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
        [11.0]
    """

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return scores (...), of rows (..., d) of sources and of destinations."""
        return (src * dst).sum(-1)


class LinkMLP(nn.Module):
    """A perceptron of the elementwise product of both rows; of both rows where direction counts.

    Args:
        channels: Width of the rows, d.
        hidden: Width between its layers.
        out_channels: Scores of a pair: 1, or as many as there are classes of edges.
        layers: Linear maps.
        directed: Takes (source, destination) instead of their product, so that a pair and its
            reverse may differ.

    Raises:
        ConfigError: No layer.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        *,
        out_channels: int = 1,
        layers: int = 2,
        directed: bool = False,
    ) -> None:
        super().__init__()
        if layers < 1:
            raise ConfigError(f"layers must be at least 1, got {layers}")
        self.directed, self.out_channels = directed, out_channels
        widths = [2 * channels if directed else channels, *[hidden] * (layers - 1), out_channels]
        self.lins = nn.ModuleList(
            nn.Linear(widths[i], widths[i + 1]) for i in range(len(widths) - 1)
        )

    def forward(self, src: Tensor, dst: Tensor) -> Tensor:
        """Return scores of rows (..., d): (...), or with several of a pair (..., out_channels)."""
        rows = _joined(src, dst) if self.directed else src * dst
        for lin in self.lins[:-1]:
            rows = lin(rows).relu()
        out: Tensor = self.lins[-1](rows)
        return out.squeeze(-1) if self.out_channels == 1 else out


def _joined(src: Tensor, dst: Tensor) -> Tensor:
    """Return both rows side by side, of shapes that broadcast."""
    shape = torch.broadcast_shapes(src.shape, dst.shape)  # type: ignore[no-untyped-call]
    return torch.cat([src.expand(shape), dst.expand(shape)], -1)


class LinkModel(nn.Module):
    """A model of nodes and a score of pairs.

    Args:
        encoder: Takes `(x, blocks)`; gives rows of the last block's destinations.
        decoder: Takes rows of sources and of destinations; gives scores.
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self, x: Rows, blocks: Sequence[Block], pairs: Sequence[tuple[Tensor, Tensor]]
    ) -> list[Tensor]:
        """Collective, if the encoder is. Return scores of some sets of pairs.

        Args:
            x: (n, F), features of the first block's sources.
            blocks: One for each layer.
            pairs: int64 tensors that broadcast: which destinations of the last block the sources
                and destinations of pairs are.
        """
        rows = self.encoder(x, blocks)
        return [self.decoder(rows[src], rows[dst]) for src, dst in pairs]
