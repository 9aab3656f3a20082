"""Which nodes should be linked: GraphSAGE over minibatches of edges, each against drawn negatives.

gnn-dist partition cora --root DATA --parts 2 --out parts/cora
torchrun --nproc-per-node 2 examples/link_prediction.py parts/cora
"""

import sys

import torch

import gnn_dist as gd
from gnn_dist.nn.models import ModelShape, build_model

world = gd.World.from_env()
data = gd.load_shard(sys.argv[1], world)
split = gd.split_edges(data, world, val=0.1, test=0.1)  # both directions of an edge together
loader = gd.LinkLoader(
    split.shard,  # messages go along training edges, but for those of the batch
    world,
    num_neighbors=[10, 10],
    batch_size=512,  # edges, of all ranks together
    neg_sampling=gd.NegativeSampling("triplet", amount=2, strict=True),
)
torch.manual_seed(0)
encoder = build_model("sage", ModelShape(data.x.size(1), 64, 32, dropout=0.3))
model = gd.LinkModel(encoder, gd.LinkMLP(32, 32))
steps = gd.LinkSteps(model, loader, torch.optim.Adam(model.parameters(), lr=0.005), world)
held_out = gd.LinkEvaluation(
    data, world, split.test, how=gd.NegativeSampling("triplet", 20, strict=True)
)
for epoch in range(6):
    loss = steps.epoch(epoch)
metrics = held_out(gd.node_rows(encoder, split.shard, world), model.decoder)
print(f"loss {loss:.3f}, test MRR {metrics['mrr']:.3f}, test hits@10 {metrics['hits@10']:.3f}")
