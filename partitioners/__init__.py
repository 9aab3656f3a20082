"""Partitioners: algorithms that decide which part each node, or each edge, belongs to.

One file per algorithm, each a frozen dataclass of options behind the `Partitioner` protocol.
`partition_graph` is the way in: it checks the input and the result.
"""

if __name__ != "gnn_dist.partitioners":
    raise ImportError(
        f"this package must be imported as gnn_dist.partitioners, got {__name__}: take the "
        "repository's root off sys.path, or write `from gnn_dist import partitioners`"
    )

from gnn_dist.partitioners.best import Best
from gnn_dist.partitioners.contiguous import Contiguous
from gnn_dist.partitioners.dbh import Dbh
from gnn_dist.partitioners.fennel import Fennel
from gnn_dist.partitioners.hdrf import Hdrf
from gnn_dist.partitioners.ldg import Ldg
from gnn_dist.partitioners.libra import Libra
from gnn_dist.partitioners.metis import Metis
from gnn_dist.partitioners.metis_ew import MetisEW
from gnn_dist.partitioners.metis_stream import MetisStream
from gnn_dist.partitioners.mtkahypar import MtKaHyPar
from gnn_dist.partitioners.protocol import EdgePartitioner, Partitioner
from gnn_dist.partitioners.random_hash import RandomHash
from gnn_dist.partitioners.registry import STREAMING, available, make_pipeline, partition_graph
from gnn_dist.partitioners.spring import Spring
from gnn_dist.partitioners.two_phase import TwoPhase

__all__ = [
    "STREAMING",
    "Best",
    "Contiguous",
    "Dbh",
    "EdgePartitioner",
    "Fennel",
    "Hdrf",
    "Ldg",
    "Libra",
    "Metis",
    "MetisEW",
    "MetisStream",
    "MtKaHyPar",
    "Partitioner",
    "RandomHash",
    "Spring",
    "TwoPhase",
    "available",
    "make_pipeline",
    "partition_graph",
]
