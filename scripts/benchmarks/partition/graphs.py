"""The graphs of the partitioning benchmark."""

import numpy as np

import gnn_dist as gd

REAL = (
    "debian",
    "coauthor-physics",
    "facebook-pages",
    "coauthor-cs",
    "dblp",
    "amazon-computers",
    "amazon-photo",
    "tolokers",
    "minesweeper",
    "cora-ml",
    "cora",
    "citeseer",
)
SYNTHETIC = {
    "rmat18": "rmat:scale=18,degree=16,features=1",
    "sbm18": "sbm:nodes=262144,blocks=64,degree_in=16,degree_out=4,features=1",
}


def load(name: str, root: str) -> gd.Graph:
    """Return a graph; one without a split gets a seeded one, since training nodes are balanced."""
    graph = gd.load_dataset(SYNTHETIC.get(name, name), root)
    if graph.train_mask is not None:
        return graph
    draw = np.random.default_rng(0).random(graph.num_nodes)
    masks = {"train_mask": draw < 0.5, "val_mask": (draw >= 0.5) & (draw < 0.7)}
    y = np.zeros(graph.num_nodes, np.int64) if graph.y is None else np.maximum(graph.y, 0)
    return graph.replace(y=y, test_mask=draw >= 0.7, **masks)
