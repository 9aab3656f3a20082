"""Debian's packages as a graph: a real dataset on any Debian or Ubuntu machine, no download.

Nodes are packages, labels their sections, features the words of their one-line descriptions.

Direction. The file's row 0 needs row 1. Messages flow from the needed package to the one that
needs it: src = row 1, dst = row 0. A package knows what it needs the day it is published, whereas
who needs it shows later; and needs are few, whereas one library is needed by 21,846 packages.
"""

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnn_dist.datasets.arrays import CSR_KEYS, graph_fields_from_arrays, read_npz
from gnn_dist.datasets.base import DatasetInfo, naming
from gnn_dist.datasets.debian_index import build_arrays, index_files, read_packages
from gnn_dist.errors import DatasetError
from gnn_dist.graph import Graph, graph_from_edges

__all__ = ["Debian", "is_available"]

Array = NDArray[Any]

FILE = "debian.npz"
REQUIRED = ("edge_index", "edge_type", "y", "split", "x_indptr", "x_indices", "x_shape")

log = logging.getLogger(__name__)


def is_available(root: str | Path | None) -> bool:
    """Return whether `debian` loads without a download, from a file or an index, in about 0.5 s."""
    if root is not None and (Path(root) / FILE).is_file():
        return True
    try:
        return bool(index_files())
    except DatasetError:  # an apt that cannot run has no index to offer
        return False


@dataclass(frozen=True)
class Debian:
    """The package graph, with edge types and a split by source package.

    `edge_type`: 0 Depends, 1 Pre-Depends, 2 Recommends, 3 Suggests, 4 Enhances. Symmetrised
    unless `directed`; where two packages need each other, each direction keeps its own type.
    """

    @property
    def info(self) -> DatasetInfo:
        """What is known without loading: Debian 12; a machine's own index is close to it."""
        return DatasetInfo(
            name="debian",
            source="package index of Debian 12; sizes move with each point release",
            num_nodes=63_681,
            num_edges=657_370,
            num_features=1_024,
            num_classes=51,
            licence="factual metadata",
            obtained=f"{FILE} under the root, else built from this machine's apt index",
        )

    def load(self, root: Path | None, *, seed: int, directed: bool) -> Graph:
        """Read the file, or build it from the index and keep it under the root where possible.

        Raises:
            DatasetError: There is neither a file nor an index, or the file is damaged.
        """
        path = None if root is None else root / FILE
        if path is not None and path.exists():
            return graph_from_packages(read_npz(path, (*REQUIRED, "x_data")), path, directed)
        files = index_files()
        if not files:
            raise DatasetError(
                f"debian needs {FILE} under the root folder ({root or 'none given'}) or apt's "
                "package index, got neither: run `apt-get update`, or put the file there"
            )
        arrays = build_arrays(read_packages(files))
        if path is not None:
            _keep(arrays, path)
        return graph_from_packages(arrays, files[0].parent, directed)


def graph_from_packages(arrays: Mapping[str, Array], where: object, directed: bool) -> Graph:
    """Build the graph from the arrays of `debian.npz`.

    Raises:
        DatasetError: An array is missing or illegal.
    """
    for key in REQUIRED:
        if key not in arrays:
            raise DatasetError(f"{where} must hold the key {key}, got none: remove or replace it")
    needs, needed = arrays["edge_index"]
    split, labels = arrays["split"], arrays["y"]
    features = {key: arrays[key] for key in CSR_KEYS if key in arrays}
    with naming(where):
        return graph_from_edges(
            needed,
            needs,
            num_nodes=len(labels),
            symmetrize=not directed,
            **graph_fields_from_arrays(features, where),
            y=labels,
            train_mask=split == 0,
            val_mask=split == 1,
            test_mask=split == 2,
            edge_type=arrays["edge_type"],
            name="debian",
        )


def _keep(arrays: Mapping[str, Array], path: Path) -> None:
    """Save the arrays under a temporary name, then rename: readers never see half a file."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            np.savez_compressed(file, allow_pickle=False, **arrays)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:  # the file only saves time: a read-only root is no fault
        log.info("%s is not kept: %s", path, error)
        if temporary is not None:
            temporary.unlink(missing_ok=True)
