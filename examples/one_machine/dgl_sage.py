"""GraphSAGE as DGL writes it.

python examples/one_machine/dgl_sage.py cora DATA
"""

import sys

import dgl
import torch
import torch.nn.functional as F
from dgl.nn.pytorch import SAGEConv
from torch import Tensor

import gnn_dist as gd


class SAGE(torch.nn.Module):
    """Two layers with means of neighbours."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(width, 32, "mean"), SAGEConv(32, classes, "mean")

    def forward(self, graph: dgl.DGLGraph, x: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        x = F.dropout(self.first(graph, x).relu(), p=0.5, training=self.training)
        return self.second(graph, x)


def mean(rows: Tensor) -> Tensor:
    """Return the mean over all nodes that rows are given for."""
    return rows.mean()


data = gd.graph_to_pyg(gd.load_dataset(*sys.argv[1:]))
graph = dgl.graph(tuple(data.edge_index), num_nodes=len(data.y))
graph.ndata.update(feat=data.x, label=data.y)
graph.ndata.update(train_mask=data.train_mask, test_mask=data.test_mask)
torch.manual_seed(0)
x, y = graph.ndata["feat"], graph.ndata["label"]
train, test = graph.ndata["train_mask"], graph.ndata["test_mask"]
model: torch.nn.Module = SAGE(x.size(1), classes=7)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(40):
    model.train()
    rows = model(graph, x)[train]
    loss = mean(F.cross_entropy(rows, y[train], reduction="none"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    right = model(graph, x).argmax(dim=1) == y
print(f"loss {loss:.3f}, test accuracy {mean(right[test].float()):.3f}")
