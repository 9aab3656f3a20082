"""A model of one's own behind scikit-learn's interface.

gnn-dist partition cora --root DATA --parts 2 --out parts/cora
torchrun --nproc-per-node 2 examples/estimator.py parts/cora
"""

import sys

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gnn_dist as gd


class SAGE(nn.Module):
    """Two layers of GraphSAGE."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(1433, 32), SAGEConv(32, 7)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits, a row for each node."""
        x = F.dropout(self.first(x, edge_index).relu(), p=0.5, training=self.training)
        return self.second(x, edge_index)


model = gd.DistNodeClassifier(model=SAGE, parts=sys.argv[1], epochs=40, random_state=0)
model.fit()
print(f"test accuracy {model.score():.3f}")
