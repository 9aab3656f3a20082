"""Graph attention with four heads.

gnn-dist partition cora --root DATA --parts 2 --out parts/cora
torchrun --nproc-per-node 2 examples/gat.py parts/cora
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv

import gnn_dist as gd


class GAT(torch.nn.Module):
    """Two layers of attention, with dropout of attention weights."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = GATConv(width, 8, heads=4, dropout=0.4)
        self.second = GATConv(32, classes, dropout=0.4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        x = F.elu(self.first(x, edge_index))
        return self.second(x, edge_index)


def mean(rows: Tensor) -> Tensor:
    """Return the mean over all nodes that rows are given for."""
    return gd.mean_over_ranks(rows, world)


world = gd.World.from_env()
data = gd.load_shard(sys.argv[1], world)
torch.manual_seed(0)
model: torch.nn.Module = GAT(data.x.size(1), classes=7)
model = gd.parallelize(model, data, world)
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
