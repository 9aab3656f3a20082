"""Which modules written for one machine are exact on a shard, and why the others are not."""

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["refused_modules", "source_names"]

ATTENTION = (nn.MultiheadAttention, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)

# Convolutions whose exactness is tested; their classes live in torch_geometric.nn.conv.
EXACT_CONVS = ("GATConv", "GATv2Conv", "GINConv", "GraphConv", "SAGEConv")
# Normalisations that are exact: by node, or through torch.nn.functional.batch_norm.
EXACT_NORMS = ("BatchNorm", "MessageNorm")


def refusal(module: nn.Module) -> str | None:
    """Say why a module would not be exact; None if it is."""
    home = type(module).__module__
    if home.startswith("torch_geometric.nn.norm") and type(module).__name__ not in EXACT_NORMS:
        by_node = type(module).__name__ == "LayerNorm" and getattr(module, "mode", "") == "node"
        return None if by_node else "its statistics span all nodes of the graph; use BatchNorm"
    if home.startswith("torch_geometric.nn.pool"):
        return "pooling looks at all nodes of the graph at once"
    if isinstance(module, ATTENTION) or home.startswith("torch_geometric.nn.attention"):
        return "attention over rows would see this rank's nodes only"
    if isinstance(module, nn.Embedding) and module.sparse:
        return "sparse gradients cannot be summed yet: use sparse=False"
    from torch_geometric.nn import MessagePassing

    if isinstance(module, MessagePassing):
        return _conv_refusal(module)
    if home.startswith("torch_geometric.nn.conv"):
        return "it is no MessagePassing layer, and not known to be exact on a shard"
    return None


def refused_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield (name, module, reason) of what in a model would not be exact."""
    from torch_geometric.nn import MessagePassing
    from torch_geometric.nn.aggr import Aggregation

    # Inside a layer an aggregation sees all in-edges of its node; elsewhere, this rank's rows.
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, MessagePassing):
            inside.update(module.aggr_module.modules())
    for name, module in model.named_modules():
        if module in inside:
            continue
        reason = refusal(module)
        if isinstance(module, Aggregation):
            reason = "as a readout it would see this rank's nodes only"
        if reason is not None:
            yield name or "model", module, reason


def _conv_refusal(layer: Any) -> str | None:
    for base in type(layer).__mro__:
        known = base.__name__ in (*EXACT_CONVS, "MessagePassing")
        if base.__module__.startswith("torch_geometric.") and not known:
            return (
                f"{base.__name__} is not known to be exact on a shard (layers that normalise by "
                f"degree are not); known are {', '.join(EXACT_CONVS)} and layers of your own"
            )
    if layer.flow != "source_to_target":
        return (
            f"flow must be 'source_to_target', got {layer.flow!r}: owned nodes hold in-edges only"
        )
    if getattr(layer, "decomposed_layers", 1) > 1:
        return "decomposed_layers must be 1"
    for reader, others in (("message", ("aggregate", "update")), ("edge_update", ())):
        lifted = set(source_names(layer, reader))
        for function in (reader, *others):
            whole = lifted & set(inspect.signature(getattr(layer, function)).parameters)
            if whole:
                return (
                    f"{function} takes {min(whole)!r} whole while {reader} reads it at sources: "
                    f"pass the whole under another name"
                )
    return None


def source_names(layer: nn.Module, function: str) -> list[str]:
    """Names whose rows a layer's function reads at the sources of edges: `x` for `x_j`."""
    parameters = inspect.signature(getattr(layer, function)).parameters
    names = [name.removesuffix("_j") for name in parameters if name.endswith("_j")]
    return [name for name in names if name not in ("edge_index", "size")]
