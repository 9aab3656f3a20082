"""The graphs and models of the epoch benchmark."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A graph and the widths of a 3-layer GraphSAGE."""

    name: str
    dataset: str
    hidden: int
    layers: int = 3
    dropout: float = 0.5


CASES = {
    "sage": Case("100-256-256-47, 16 edges a node", "rmat:scale=17,degree=8", 256),
    "heavy": Case("100-64-64-47, 64 edges a node", "rmat:scale=17,degree=32", 64),
}
QUICK = {"sage": Case("quick", "rmat:scale=10,degree=8", 32)}
