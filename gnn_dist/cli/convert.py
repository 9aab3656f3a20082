"""The command `convert`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from gnn_dist.cli.environment import Environment

__all__ = ["Convert"]


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Turn a partition folder of gnn-dist, DGL or PyG into one of another of them.

    Nothing is partitioned again: parts, replication factor, edges, labels and masks stay.
    Example: gnn-dist convert parts/cora --to dgl --out parts/cora-dgl
    """

    folder: Positional[str]
    """Partition folder; of DGL also its .json file."""
    to: Literal["gnn-dist", "dgl", "pyg"]
    """Format to write."""
    out: str
    """Folder to make."""
    original_ids: str = ""
    """For a folder of DGL: file (.npy or .pt) with the original id of each of DGL's node ids."""
    overwrite: bool = False
    """Replace an existing folder of that format."""

    def run(self, environment: Environment) -> int:
        """Write the folder and say what it holds."""
        del environment
        from gnn_dist.convert import convert_folder

        parted = convert_folder(
            self.folder,
            self.to,
            Path(self.out),
            overwrite=self.overwrite,
            original_ids=self.original_ids or None,
        )
        partition = parted.partition
        print(
            f"{self.out}: {parted.name}, {len(partition.assignment):,} nodes and "
            f"{parted.num_edges:,} edges in {partition.num_parts} parts, in the format of {self.to}"
        )
        return 0
