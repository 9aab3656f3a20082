"""The command `inspect`."""

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from gnn_dist.cli.environment import Environment
from gnn_dist.cli.tables import comparison_table, quality_table
from gnn_dist.errors import ConfigError
from gnn_dist.shard.format import read_meta

__all__ = ["Inspect"]


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Print what a partition folder holds and how good the partition is.

    Examples: gnn-dist inspect parts/cora; gnn-dist inspect parts/cora --html report.html;
    gnn-dist inspect parts/cora-metis parts/cora-random --compare
    """

    folders: Positional[tuple[str, ...]]
    """Partition folder, or several to compare."""
    json: bool = False
    """Print JSON."""
    html: str = ""
    """Write a page with pictures to this file, too."""
    compare: bool = False
    """Print a table with a column for each folder."""

    def run(self, environment: Environment) -> int:
        """Print the report."""
        del environment
        if self.compare:
            return self._compare()
        if len(self.folders) != 1:
            raise ConfigError(
                f"one partition folder must be named, or several with --compare, got "
                f"{len(self.folders)}"
            )
        (folder,) = self.folders
        if not (self.html or self.json):
            print(quality_table(read_meta(folder), folder))
            return 0
        from gnn_dist.report import card_page, read_card

        card = read_card(folder)
        if self.html:
            _write(Path(self.html), card_page(card))
        print(
            json.dumps(card.to_dict(), indent=1) if self.json else quality_table(card.meta, folder)
        )
        return 0

    def _compare(self) -> int:
        from gnn_dist.report import compare_cards, read_card

        if self.html:
            raise ConfigError("--html shows one partition folder: leave out --compare")
        if not self.folders:
            raise ConfigError("partition folders to compare must be named, got none")
        rows = compare_cards([read_card(folder) for folder in self.folders])
        print(comparison_table(self.folders, rows, as_json=self.json))
        return 0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the page cannot be written: {error}") from error
