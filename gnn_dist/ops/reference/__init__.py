"""Every operator in plain PyTorch: the oracle of the tests, and what runs without a kernel.

Arguments are those of the operators in `csrc/`, raw tensors. Nothing here is differentiable.
"""

from gnn_dist.ops.reference import (
    attention,
    clusters,
    dot_attention,
    draws,
    edge_softmax,
    gat,
    gatv2,
    local_search,
    memory,
    quantize,
    rows,
    sampling,
    sddmm,
    smooth,
    spmm,
    structure,
)

__all__ = [
    "attention",
    "clusters",
    "dot_attention",
    "draws",
    "edge_softmax",
    "gat",
    "gatv2",
    "local_search",
    "memory",
    "quantize",
    "rows",
    "sampling",
    "sddmm",
    "smooth",
    "spmm",
    "structure",
]
