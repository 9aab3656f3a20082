"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""

from gnn_dist.ops.reference import (
    attention,
    clustering,
    clusters,
    dot_attention,
    draws,
    edge_parts,
    edge_softmax,
    edge_sort,
    gat,
    gatv2,
    local_search,
    localize,
    memory,
    quantize,
    rows,
    sampling,
    sddmm,
    smooth,
    spmm,
    streaming,
    structure,
    synthetic,
)

__all__ = [
    "attention",
    "clustering",
    "clusters",
    "dot_attention",
    "draws",
    "edge_parts",
    "edge_softmax",
    "edge_sort",
    "gat",
    "gatv2",
    "local_search",
    "localize",
    "memory",
    "quantize",
    "rows",
    "sampling",
    "sddmm",
    "smooth",
    "spmm",
    "streaming",
    "structure",
    "synthetic",
]
