"""A deep residual GCN with batch norm, a readout of the whole graph added to each node.

python examples/one_machine/gcnii.py cora DATA
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GCN2Conv

import gnn_dist as gd


class DeepGCN(torch.nn.Module):
    """Four GCNII layers; each sees the first rows again."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(width, 32), torch.nn.Linear(32, classes)
        self.convs = torch.nn.ModuleList(
            GCN2Conv(32, alpha=0.1, theta=0.5, layer=number + 1) for number in range(4)
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(32) for _ in range(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        x = start = self.first(x).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, start, edge_index)).relu()
            x = F.dropout(x, p=0.2, training=self.training)
        return self.last(x + x.mean(dim=0))


def mean(rows: Tensor) -> Tensor:
    """Return the mean over all nodes that rows are given for."""
    return rows.mean()


data = gd.graph_to_pyg(gd.load_dataset(*sys.argv[1:]))
torch.manual_seed(0)
model: torch.nn.Module = DeepGCN(data.x.size(1), classes=7)
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
