"""A two-layer GCN.

python examples/one_machine/gcn.py cora DATA
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCNConv

import gnn_dist as gd


class GCN(torch.nn.Module):
    """Two graph convolutions."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(width, 32), GCNConv(32, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.first(x, edge_index).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.second(x, edge_index)


def mean(rows: Tensor) -> Tensor:
    """Return the mean over all nodes that rows are given for."""
    return rows.mean()


data = gd.graph_to_pyg(gd.load_dataset(*sys.argv[1:]))
torch.manual_seed(0)
model: torch.nn.Module = GCN(data.x.size(1), classes=7)
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
