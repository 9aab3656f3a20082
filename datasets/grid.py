"""A rectangular grid: a graph whose every number can be worked out by hand."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnn_dist.datasets.base import DatasetInfo
from gnn_dist.datasets.options import check_options, describe_options, full_name, option
from gnn_dist.errors import DatasetError
from gnn_dist.graph import INT32_LIMIT, Graph, graph_from_edges

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Grid with edges to the four neighbours, both ways; node (r, c) is r * cols + c. No split.

    Features are the coordinates, scaled to 0..1; labels the quadrants, 0 1 over 2 3.

    Attributes:
        rows: Number of rows.
        cols: Number of columns.

    Raises:
        DatasetError: An option is out of its range.

    Example:
        >>> Grid(rows=2, cols=2).load(None, seed=0, directed=False).y.tolist()
        [0, 1, 2, 3]
    """

    rows: int = option(64, 1, 1_000_000)
    cols: int = option(64, 1, 1_000_000)

    def __post_init__(self) -> None:
        check_options(self, "grid")
        if self.rows * self.cols >= INT32_LIMIT:
            raise DatasetError(
                f"grid must have fewer than 2^31 nodes, got rows={self.rows} x cols={self.cols}"
            )

    @property
    def info(self) -> DatasetInfo:
        """What is known without generating."""
        return DatasetInfo(
            name="grid",
            source="synthetic: 4-neighbour grid, coordinates and quadrants",
            num_nodes=self.rows * self.cols,
            num_edges=2 * (self.rows * (self.cols - 1) + self.cols * (self.rows - 1)),
            num_features=2,
            num_classes=4,
            licence="none needed",
            obtained="generated",
            options=describe_options(self),
        )

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Generate the graph, the same for every seed."""
        node = np.arange(self.rows * self.cols).reshape(self.rows, self.cols)
        row, col = (part.ravel() for part in np.indices(node.shape))
        right = node[:, :-1].ravel(), node[:, 1:].ravel()
        down = node[:-1].ravel(), node[1:].ravel()
        scale = np.array([max(1, self.rows - 1), max(1, self.cols - 1)], np.float32)
        return graph_from_edges(
            np.concatenate([right[0], down[0], right[1], down[1]]),
            np.concatenate([right[1], down[1], right[0], down[0]]),
            num_nodes=node.size,
            x=np.stack([row, col], axis=1).astype(np.float32) / scale,
            y=2 * (2 * row >= self.rows) + (2 * col >= self.cols),
            num_classes=4,
            name=full_name(self, "grid"),
        )
