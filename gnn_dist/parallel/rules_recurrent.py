"""Rules for recurrent networks: each row of a batch is a sequence of its own."""

from typing import Any

import torch

from gnn_dist.parallel.call import Call
from gnn_dist.parallel.placement import mark, placement
from gnn_dist.parallel.rules_draw import draw
from gnn_dist.parallel.tracing import Args, Kwargs, marked, refuse, rule, tensors, without_rule

__all__: list[str] = []


@rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def recurrent(call: Call, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Sequences over layers, say, beside each other; never a sequence of nodes."""
    inputs = list(marked(args, kwargs))
    if not inputs:
        return func(*args, **kwargs)
    x = args[0]
    # Packed sequences have their lengths before their state, and so their weights one place later.
    if kwargs or len(args) != 9 or not isinstance(args[3], bool) or x.dim() != 3:
        refuse(func, "of packed sequences would have to know which of them are whose")
    dropout, training, batch_first = args[5], args[6], args[8]
    batch_dim = 0 if batch_first else 1
    placed = placement(x)
    if placed is None:
        return without_rule(func, args, kwargs)
    if placed.dim != batch_dim:
        refuse(func, f"goes over the rows of this rank's {placed.kind.value}")
    if dropout > 0 and training and args[4] > 1:
        draw(call, func, args, kwargs)
    out, *states = func(*args)
    rows = placed.rows_only()
    for state in tensors(states):  # (layers, batch, width)
        mark(state, rows.at(1))
    return mark(out, rows), *states
