"""Several partition folders side by side."""

from collections.abc import Sequence

from gnn_dist.report.card import PartitionCard

__all__ = ["compare_cards"]

OPTION = "option "


def compare_cards(cards: Sequence[PartitionCard]) -> dict[str, list[float | str | None]]:
    """Return what a choice between partitions depends on: one value a folder, by name of the row.

    Args:
        cards: Of partitions of one graph, or of several.

    Returns:
        Rows in the order to show. None where a folder lacks what the row is about; rows that all
        folders lack are left out, and so are options that are the same everywhere.
    """
    rows = [_column(card) for card in cards]
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: [row.get(name) for row in rows] for name in names}
    return {name: v for name, v in table.items() if not (_is_option(name) and len(set(v)) == 1)}


def _is_option(name: str) -> bool:
    return name.startswith(OPTION)


def _column(card: PartitionCard) -> dict[str, float | str | None]:
    meta, quality = card.meta, card.meta.quality
    column: dict[str, float | str | None] = {
        "dataset": meta.dataset,
        "parts": meta.num_parts,
        "method": meta.partitioner["method"],
        **{f"{OPTION}{name}": str(v) for name, v in meta.partitioner["options"].items()},
        "replication factor": quality["replication_factor"],
        "edge cut": quality["edge_cut_fraction"],
        **{f"max/mean {name}": value for name, value in quality["balance"].items()},
        "max halo": max(quality["num_halo"]),
        "rows exchanged": sum(quality["num_halo"]),
    }
    entropy = quality.get("label_entropy")
    if entropy:
        column["label entropy mean"] = entropy["mean"]
        column["label entropy spread"] = entropy["spread"]
    column["max memory (MB)"] = max(card.training_bytes) / 1e6
    column["size on disk (MB)"] = card.disk_bytes / 1e6
    return column
