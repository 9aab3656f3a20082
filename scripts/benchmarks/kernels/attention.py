"""A graph attention layer, forward and backward: time, and memory added at the peak.

    python scripts/benchmarks/kernels/attention.py            both, at scale 16
    python scripts/benchmarks/kernels/attention.py --quick

The layer maps 128 features to 8 heads of 16, with self-loops, and gives the gradients of features
and parameters. Peers get a graph that has its self-loops, in their best form.

Memory is the peak of the process's resident memory above what it was before the layer first ran on
the graph, each candidate in a process of its own. Linux only.
"""

import argparse
import ctypes
import gc
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from graphs import Graph
from harness import OURS, Case, Setup, measure
from peers import load_peers
from torch import Tensor, nn

from gnn_dist.halo.block import Block
from gnn_dist.nn.attention import GATConv
from gnn_dist.shard.structure import Structure

Candidates = dict[str, Callable[[], object]]
FEATURES, HEADS, WIDTH = 128, 8, 16
SCALE, QUICK_SCALE = 16, 12
DGL, PYG, PYG_SPARSE = "DGL", "PyG edge_index", "PyG SparseTensor"


def cases(setup: Setup) -> Iterator[Case]:
    """Make the case.

    Bytes moved: as if no row stayed in cache, a source's row for each edge in the forward and in
    both walks of the backward.
    """
    graph = graph_of(setup)
    row = 4 * HEADS * WIDTH
    moved = 3 * (graph.csr.nnz + graph.num_nodes) * row
    matrices = 3 * 2.0 * graph.num_nodes * FEATURES * HEADS * WIDTH
    yield Case("GAT layer, forward + backward", candidates(setup, graph), moved, matrices)


def graph_of(setup: Setup) -> Graph:
    """Return the graph of the case."""
    return setup.rmat(QUICK_SCALE if setup.quick else min(setup.scale, SCALE), 16)


def candidates(setup: Setup, graph: Graph) -> Candidates:
    """Return functions that run a layer forward and backward once, by name."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(graph.num_nodes, FEATURES, generator=generator).requires_grad_()
    grad = torch.randn(graph.num_nodes, HEADS * WIDTH, generator=generator)
    makers = {OURS: _ours}
    if setup.peers.dgl is not None:
        makers[DGL] = _dgl
    if setup.peers.pyg is not None:
        makers[PYG] = _pyg
        if setup.peers.pyg_samples:
            makers[PYG_SPARSE] = _pyg_sparse
    return {name: _step(*make(setup, graph), x, grad) for name, make in makers.items()}


def _step(
    layer: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor
) -> Callable[[], object]:
    inputs = [x, *layer.parameters()]

    def call() -> object:
        for tensor in inputs:
            tensor.grad = None
        return forward(x).flatten(1).backward(grad)

    return call


def _ours(setup: Setup, graph: Graph) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    layer = GATConv(FEATURES, WIDTH, HEADS)
    csr = graph.csr
    block = Block(Structure(csr, torch.arange(graph.num_nodes), csr.counts.double()))
    _ = csr.with_self_loops.transpose  # peers have both directions beforehand, too
    return layer, lambda x: layer(x, block)


def _dgl(setup: Setup, graph: Graph) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    dgl = setup.peers.dgl
    layer = dgl.nn.GATConv(FEATURES, WIDTH, HEADS)
    # From pairs: with a graph of CSC arrays alone, DGL 1.1.3 fails in the backward.
    src, dst = Graph(graph.csr.with_self_loops).edge_index.int()
    adjacency = dgl.graph((src, dst), num_nodes=graph.num_nodes)
    adjacency.create_formats_()
    return layer, lambda x: layer(adjacency, x)


def _pyg(setup: Setup, graph: Graph) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    layer = setup.peers.pyg.nn.GATConv(FEATURES, WIDTH, HEADS, add_self_loops=False)
    edges = Graph(graph.csr.with_self_loops).edge_index
    return layer, lambda x: layer(x, edges)


def _pyg_sparse(setup: Setup, graph: Graph) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    import torch_sparse

    layer = setup.peers.pyg.nn.GATConv(FEATURES, WIDTH, HEADS, add_self_loops=False)
    csr = graph.csr.with_self_loops
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = torch_sparse.SparseTensor(
        rowptr=csr.indptr, col=csr.indices.long(), sparse_sizes=size
    )
    adjacency.fill_cache_()
    return layer, lambda x: layer(x, adjacency)


def added_memory(setup: Setup, threads: int) -> dict[str, int]:
    """Return the bytes that each candidate adds, each measured in a process of its own."""
    names = candidates(setup, setup.rmat(QUICK_SCALE, 16))
    command = [sys.executable, __file__, "--cache", str(setup.cache), "--threads", str(threads)]
    command += ["--quick"] if setup.quick else ["--scale", str(setup.scale)]
    out = {}
    for name in names:
        done = subprocess.run(
            [*command, "--memory-of", name], check=True, capture_output=True, text=True
        )
        out[name] = int(done.stdout.split()[-1])
    return out


def peak_above(setup: Setup, name: str) -> int:
    """Run a candidate once, after a run on a small graph, and return the bytes that it added."""
    candidates(setup, setup.rmat(QUICK_SCALE, 16))[name]()
    call = candidates(setup, graph_of(setup))[name]
    gc.collect()
    torch.ops.gnn_dist.release_pool()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Return a line of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"this system does not report {field}")


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--scale", type=int, default=SCALE, help="2^scale nodes, 16 edges each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--reps", type=int, default=7, help="repetitions, in turns")
    parser.add_argument("--quick", action="store_true", help="scale 12")
    parser.add_argument("--memory-of", help="one candidate's memory alone, in bytes")
    cache = Path(tempfile.gettempdir()) / "gnn-dist-benchmarks"
    parser.add_argument("--cache", type=Path, default=cache, help="folder for graphs")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore")  # of the peers
    setup = Setup(load_peers(), args.scale, args.cache, args.quick)
    if args.memory_of:
        print(peak_above(setup, args.memory_of))
        return
    [case] = cases(setup)
    results, memory = measure(case, args.reps), added_memory(setup, args.threads)
    print(f"torch {torch.__version__}, {setup.peers.describe()}; {args.threads} threads\n")
    print("| candidate | ms | slower by | MB added at the peak | more by |\n|---|---|---|---|---|")
    for name, result in results.items():
        slower = result.median_s / results[OURS].median_s
        more = memory[name] / memory[OURS]
        print(
            f"| {name} | {1e3 * result.median_s:.1f} | {slower:.2f}x | {memory[name] / 1e6:.0f} "
            f"| {more:.2f}x |"
        )


if __name__ == "__main__":
    main()
