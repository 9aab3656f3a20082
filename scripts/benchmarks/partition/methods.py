"""The names of what is compared."""

from peers import PEERS

PEER = "peer-"  # before the name of a peer
BALANCE = "nodes,edges,train"
STREAMING = ("ldg", "fennel", "metis-stream", "spring")
VERTEX_CUTS = ("libra", "hdrf", "dbh", "2ps-l")
UNBALANCED = ("contiguous", "random", *VERTEX_CUTS)  # take no constraints
# A name that stands for several methods; those that take longest come last.
GROUPS: dict[str, tuple[str, ...]] = {
    "quick": (
        "random",
        "contiguous",
        "metis",
        *STREAMING,
        *(f"{name}+refine" for name in ("metis", *STREAMING)),
    ),
    "vertex-cuts": VERTEX_CUTS,
    "peers": tuple(PEER + name for name in PEERS),
    "best": ("best",),
    "claims": tuple(f"best@{name}" for name in PEERS),
}


def expand(names: list[str]) -> list[str]:
    """Return methods, with groups replaced by what they stand for."""
    return [method for name in names for method in GROUPS.get(name, (name,))]
