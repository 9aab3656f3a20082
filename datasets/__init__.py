"""Datasets behind one registry: benchmark graphs, user data and seeded synthetic graphs.

`load_dataset` turns a name or a path into a `Graph`; `list_datasets` says what there is. A source
is one file here that holds a frozen dataclass with `info` and `load`, plus one line in
`registry.py`. Nothing here imports torch until a source needs it.
"""

if __name__ != "gnn_dist.datasets":
    raise ImportError(
        "this folder must be imported as gnn_dist.datasets, got the bare name 'datasets': the "
        "source folder of gnn-dist is on sys.path and hides any other package of that name; run "
        "from another folder if you meant Hugging Face's datasets"
    )

from gnn_dist.datasets.base import DatasetInfo, Source
from gnn_dist.datasets.registry import list_datasets, load_dataset

__all__ = ["DatasetInfo", "Source", "list_datasets", "load_dataset"]
