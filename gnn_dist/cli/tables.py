"""What commands print: plain tables, or the same as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gnn_dist.datasets import DatasetInfo
from gnn_dist.shard.format import Meta

__all__ = ["comparison_table", "dataset_table", "quality_table", "text_table"]


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return left-aligned columns, two spaces apart."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def dataset_table(infos: Sequence[DatasetInfo], *, as_json: bool) -> str:
    """Return the table of datasets: name, N, E, F, C, source, licence."""
    if as_json:
        return json.dumps([asdict(info) for info in infos], indent=1)
    header = ("name", "N", "E", "F", "C", "source", "licence")
    rows = [
        (
            info.name,
            f"{info.num_nodes:,}",
            "?" if info.num_edges is None else f"{info.num_edges:,}",
            f"{info.num_features:,}",
            str(info.num_classes),
            info.source,
            info.licence,
        )
        for info in infos
    ]
    return text_table(header, rows)


def quality_table(meta: Meta, folder: str) -> str:
    """Return what a partition folder holds and what its partition costs."""
    quality = meta.quality
    balance = quality["balance"]
    options = " ".join(f"{k}={v}" for k, v in meta.partitioner["options"].items())
    lines = [
        f"{folder}: {meta.dataset}, {meta.num_nodes:,} nodes, {meta.num_edges:,} edges, "
        f"{meta.num_features:,} features, {meta.num_classes or 0} classes",
        f"{meta.num_parts} parts by {meta.partitioner['method']} {options}".rstrip(),
        _cut_line(quality),
        f"replication factor  {quality['replication_factor']:.3f}",
        "max / mean          " + ", ".join(f"{k} {v:.3f}" for k, v in balance.items()),
        *_entropy_lines(quality.get("label_entropy")),
        *(f"note: {note}" for note in meta.partitioner["notes"]),
        "",
        _part_table(quality),
    ]
    return "\n".join(lines)


def _cut_line(quality: dict[str, Any]) -> str:
    """Return what is cut: edges between parts, or nodes with clones in several."""
    if "num_split" in quality:
        return f"split nodes         {quality['num_split']:,} ({quality['split_fraction']:.1%})"
    return f"edge cut            {quality['edge_cut']:,} ({quality['edge_cut_fraction']:.1%})"


def comparison_table(
    folders: Sequence[str], rows: Mapping[str, Sequence[float | str | None]], *, as_json: bool
) -> str:
    """Return partitions side by side, a column for each folder."""
    if as_json:
        columns = [
            {"folder": folder, **{name: values[i] for name, values in rows.items()}}
            for i, folder in enumerate(folders)
        ]
        return json.dumps(columns, indent=1)
    body = [(name, *(_cell(name, value) for value in values)) for name, values in rows.items()]
    return text_table(("", *folders), body)


def _cell(name: str, value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name == "edge cut":
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


def _entropy_lines(entropy: dict[str, Any] | None) -> list[str]:
    if not entropy:
        return []
    averaged = ", averaged over labels" if entropy["task"] == "multilabel" else ""
    return [
        f"label entropy       mean {entropy['mean']:.3f}, spread {entropy['spread']:.3f}, whole "
        f"graph {entropy['whole']:.3f} bits ({entropy['basis']} nodes{averaged})"
    ]


def _part_table(quality: dict[str, Any]) -> str:
    titles = ("nodes", "edges", "halo", "clones", "train")
    columns = {title: quality.get(f"num_{title}") for title in titles}
    present = {title: values for title, values in columns.items() if values is not None}
    entropy = quality.get("label_entropy")
    if entropy:
        present["entropy"] = ["-" if h is None else f"{h:.3f}" for h in entropy["entropy"]]
    rows = [
        (str(part), *(_cell("", values[part]) for values in present.values()))
        for part in range(len(quality["num_nodes"]))
    ]
    return text_table(("part", *present), rows)
