"""A message-passing layer of your own: gated differences, normalised by out-degree.

python examples/one_machine/own_layer.py cora DATA
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import degree

import gnn_dist as gd


class GatedDifference(MessagePassing):
    """Sum gated differences to neighbours, each divided by the neighbour's out-degree."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(aggr="add")
        self.lin = torch.nn.Linear(width_in, width_out)
        self.gate = torch.nn.Linear(2 * width_out, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return rows of nodes."""
        x = self.lin(x)
        share = 1 / degree(edge_index[0], x.size(0)).clamp(min=1).view(-1, 1)
        return x + self.propagate(edge_index, x=x, share=share)

    def message(self, x_i: Tensor, x_j: Tensor, share_j: Tensor) -> Tensor:
        """Return a message for each edge."""
        gate = torch.sigmoid(self.gate(torch.cat([x_i, x_j], dim=1)))
        return gate * share_j * (x_j - x_i)


class Net(torch.nn.Module):
    """Two such layers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GatedDifference(width, 32), GatedDifference(32, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        return self.second(self.first(x, edge_index).relu(), edge_index)


def mean(rows: Tensor) -> Tensor:
    """Return the mean over all nodes that rows are given for."""
    return rows.mean()


data = gd.graph_to_pyg(gd.load_dataset(*sys.argv[1:]))
torch.manual_seed(0)
model: torch.nn.Module = Net(data.x.size(1), classes=7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(40):
    model.train()
    rows = model(data.x, data.edge_index)[data.train_mask]
    loss = mean(F.cross_entropy(rows, data.y[data.train_mask], reduction="none"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    right = model(data.x, data.edge_index).argmax(dim=1) == data.y
print(f"loss {loss:.3f}, test accuracy {mean(right[data.test_mask].float()):.3f}")
