"""Aggregation, forward and backward.

Bytes moved: as if no row stayed in cache. Each entry reads a source row and its column number (and
weight), each destination writes a row and reads its offset; a maximum writes a count too, and its
backward reads two rows an entry. So caches can make it more than a copy moves.
"""

from collections.abc import Callable, Iterator

import torch
from graphs import Graph
from harness import OURS, Case, Setup
from torch import Tensor

from gnn_dist.halo.aggregate import aggregate

Candidates = dict[str, Callable[[], object]]
DGL = "DGL"
SPARSE = "torch.sparse CSR"
PYG = "PyG gather-scatter"


def cases(setup: Setup) -> Iterator[Case]:
    """Make the cases."""
    widths = (16,) if setup.quick else (64, 128, 256)
    peers = _Peers(setup)
    for width in widths:
        for reduce, dtype, weighted in (
            ("sum", torch.float32, False),
            ("mean", torch.float32, False),
            ("sum", torch.bfloat16, False),
            ("sum", torch.float32, True),
            ("max", torch.float32, False),
        ):
            yield _case(peers, width, reduce, dtype, weighted)
            yield _case(peers, width, reduce, dtype, weighted, backward=True)


class _Peers:
    """The graph in the form of each library, converted once."""

    def __init__(self, setup: Setup) -> None:
        self.graph: Graph = setup.graph
        csr = self.graph.csr
        self.weight = torch.rand(csr.nnz, generator=torch.Generator().manual_seed(0))
        self.dgl = setup.peers.dgl
        if self.dgl is not None:
            self.dgl_graph = self.graph.of_dgl(self.dgl)
            self.dgl_graph.create_formats_()
        self.pyg = setup.peers.pyg
        self.narrow = 16 if setup.quick else 64
        self.torch = setup.peers.torch
        if self.torch:
            self.sparse = self.graph.matrix(torch.ones(csr.nnz))
            self.sparse_weighted = self.graph.matrix(self.weight)

    def forwards(
        self, x: Tensor, reduce: str, weight: Tensor | None
    ) -> dict[str, Callable[[], Tensor]]:
        """Return each library's function of no arguments that aggregates x."""
        out = {OURS: lambda: aggregate(x, self.graph.block, reduce=reduce, weight=weight)}
        single = x.dtype == torch.float32
        if not single and not x.requires_grad:
            wide = x.detach().float().requires_grad_(x.requires_grad)
            out[f"{OURS} in float32"] = lambda: aggregate(wide, self.graph.block, reduce=reduce)
        if self.dgl is not None and single:
            ops = self.dgl.ops
            if weight is None:
                out[DGL] = lambda: getattr(ops, f"copy_u_{reduce}")(self.dgl_graph, x)
            else:
                edges = weight[:, None]
                out[DGL] = lambda: ops.u_mul_e_sum(self.dgl_graph, x, edges)
        if self.torch and reduce == "sum" and single:
            matrix = self.sparse if weight is None else self.sparse_weighted
            out[SPARSE] = lambda: matrix @ x
        if self.pyg is not None and x.size(1) == self.narrow and single and weight is None:
            conv = self.pyg.nn.SimpleConv(aggr=reduce)
            out[PYG] = lambda: conv(x, self.graph.edge_index)
        return out


def _case(
    peers: _Peers,
    width: int,
    reduce: str,
    dtype: torch.dtype,
    weighted: bool,
    *,
    backward: bool = False,
) -> Case:
    num_nodes, nnz = peers.graph.num_nodes, peers.graph.csr.nnz
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_nodes, width, generator=generator).to(dtype).requires_grad_(backward)
    forwards = peers.forwards(x, reduce, peers.weight if weighted else None)
    row = width * dtype.itemsize
    moved = nnz * (row + 4 + 4 * weighted) + num_nodes * (row + 8)
    candidates: Candidates = dict(forwards)
    if backward:
        grad = torch.randn(num_nodes, width, generator=generator).to(dtype)
        candidates = {name: _backward(f, x, grad) for name, f in forwards.items()}
        if reduce == "max":
            moved = nnz * (2 * row + 4) + num_nodes * (2 * row + 8)
    kind = f"{'weighted ' if weighted else ''}{reduce}, F = {width}, {str(dtype)[6:]}"
    return Case(f"{kind}, {'backward' if backward else 'forward'}", candidates, moved)


def _backward(forward: Callable[[], Tensor], x: Tensor, grad: Tensor) -> Callable[[], object]:
    """Return the backward alone; the forward is part of the first call, which does not count."""
    made: list[Tensor] = []

    def call() -> object:
        if not made:
            made.append(forward())
        return torch.autograd.grad(made[0], x, grad, retain_graph=True)

    return call
