"""Streams by name, `rmat:scale=25,degree=32`: random graphs of any size, drawn as they are read."""

from dataclasses import dataclass
from typing import ClassVar

from gnn_dist.datasets.edge_streams import open_edge_stream
from gnn_dist.datasets.options import check_options, configure, full_name, option
from gnn_dist.edge_stream import EdgeStream
from gnn_dist.errors import DatasetError
from gnn_dist.graph import INT32_LIMIT

__all__ = ["RmatStream", "SbmStream", "open_stream"]


@dataclass(frozen=True)
class RmatStream:
    """Edges of a recursive matrix, drawn natively: self-loops and repeats stay, no node data.

    Another graph than `rmat` in memory, which draws from NumPy's generator and drops repeats.

    Attributes:
        scale: Logarithm of N to base 2.
        degree: Edges drawn per node.
        a: Odds of the quadrant (low source, low destination).
        b: Odds of (low source, high destination).
        c: Odds of (high source, low destination).
        symmetric: Put its reverse behind each edge: twice as many.
        seed: Chooses the graph.

    Raises:
        DatasetError: An option is out of its range.

    Example:
        >>> RmatStream(scale=5, degree=2).stream().num_edges
        64
    """

    word: ClassVar[str] = "rmat"
    scale: int = option(20, 0, 30)
    degree: float = option(16.0, 0, 1e6)
    a: float = option(0.57, 0, 1)
    b: float = option(0.19, 0, 1)
    c: float = option(0.19, 0, 1)
    symmetric: bool = option(False)
    seed: int = option(0, 0, 2**63 - 1)

    def __post_init__(self) -> None:
        check_options(self, "rmat")  # type: ignore[arg-type]  # options are all it needs
        if self.a + self.b + self.c > 1 + 1e-9:  # room for rounding
            raise DatasetError(
                "options 'a', 'b' and 'c' of rmat must add up to at most 1, got "
                f"{self.a:g} + {self.b:g} + {self.c:g}"
            )

    def stream(self) -> EdgeStream:
        """Return the edges."""
        from gnn_dist.ops.synthetic import RecursiveMatrixEdges

        draws = round(self.degree * (1 << self.scale))
        odds = (self.a, self.b, self.c)
        edges = RecursiveMatrixEdges(self.scale, draws, odds, self.seed, self.symmetric)
        name = full_name(self, self.word)  # type: ignore[arg-type]
        return EdgeStream(edges.read, 1 << self.scale, edges.num_edges, name=name)


@dataclass(frozen=True)
class SbmStream:
    """Edges of a stochastic block model, drawn natively; the label of a node is its block.

    Self-loops and repeats stay.

    Attributes:
        nodes: N.
        blocks: Number of blocks, which is C.
        degree_in: Mean number of in-edges from the own block.
        degree_out: Mean number of in-edges from other blocks.
        symmetric: Each edge with its reverse, of the same total number.
        seed: Chooses the graph.

    Raises:
        DatasetError: An option is out of its range.

    Example:
        >>> SbmStream(nodes=100, blocks=4).stream().num_classes
        4
    """

    word: ClassVar[str] = "sbm"
    nodes: int = option(1_000_000, 1, INT32_LIMIT - 1)
    blocks: int = option(64, 1, 1_000_000)
    degree_in: float = option(16.0, 0, 1e6)
    degree_out: float = option(4.0, 0, 1e6)
    symmetric: bool = option(True)
    seed: int = option(0, 0, 2**63 - 1)

    def __post_init__(self) -> None:
        check_options(self, "sbm")  # type: ignore[arg-type]  # options are all it needs
        if self.blocks > self.nodes:
            raise DatasetError(
                f"option 'blocks' of sbm must be at most nodes={self.nodes}, got {self.blocks}"
            )

    def stream(self) -> EdgeStream:
        """Return the edges, with labels."""
        from gnn_dist.ops.synthetic import BlockModelEdges

        degree = self.degree_in + self.degree_out
        draws = round(self.nodes * degree / (2 if self.symmetric else 1))
        inside = self.degree_in / degree if degree else 0.0
        edges = BlockModelEdges(
            self.nodes, self.blocks, draws, inside, self.seed, mirrored=self.symmetric
        )
        return EdgeStream(
            edges.read,
            self.nodes,
            edges.num_edges,
            y=edges.labels,
            num_classes=self.blocks,
            name=full_name(self, self.word),  # type: ignore[arg-type]
        )


def open_stream(name: str, *, num_nodes: int | None = None, id_dtype: str = "auto") -> EdgeStream:
    """Open a stream by name or path.

    Args:
        name: `rmat` or `sbm`, with options behind a colon, or a path as `open_edge_stream` takes.
        num_nodes: N of files; by default found.
        id_dtype: Of `.bin` files.

    Raises:
        DatasetError: There is no such stream or file, or it is damaged; or a random graph, which
            has its own N, is given another.

    Example:
        >>> open_stream("rmat:scale=10,degree=4,symmetric=true").num_edges
        8192
    """
    word, _, text = name.partition(":")
    for source in (RmatStream(), SbmStream()):
        if source.word == word.lower():
            if num_nodes is not None or id_dtype != "auto":
                raise DatasetError(
                    f"num_nodes and id_dtype are of files, and {source.word} is drawn: say what it "
                    "is to be behind its name, as in rmat:scale=20 or sbm:nodes=1000"
                )
            made = configure(source, source.word, text or None)  # type: ignore[arg-type]
            return made.stream()  # type: ignore[attr-defined,no-any-return]
    return open_edge_stream(name, num_nodes=num_nodes, id_dtype=id_dtype)
