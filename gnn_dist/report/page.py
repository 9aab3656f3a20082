"""A partition's report card as one HTML file: no network, light and dark, readable on paper."""

from collections.abc import Iterator, Sequence
from html import escape

from gnn_dist.report.card import HIDDEN, LAYERS, PartitionCard
from gnn_dist.report.svg import bars, heat_map

__all__ = ["card_page"]

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5b6675; --paper: #ffffff;
  --rule: #d8dde4; --accent: #2f6fb3; --mark: #c4541d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b3; --paper: #14181f;
  --rule: #333b47; --accent: #6aa9e9; --mark: #f08a52; } }
body { margin: 2rem auto; max-width: 46rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p { color: var(--soft); } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: 0.2rem 0.6rem; border-bottom: 1px solid var(--rule);
  font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.2rem 0; break-inside: avoid; } figcaption { margin-bottom: 0.4rem; }
svg { width: 100%; height: auto; display: block; }
.bar, .cell { fill: var(--accent); } .cell { stroke: var(--rule); }
.mean { stroke: var(--mark); stroke-dasharray: 6 4; } .axis { stroke: var(--rule); }
.tick, .count { font-size: 11px; text-anchor: middle; fill: var(--soft); }
.count.light { fill: var(--paper); } .count.dark { fill: var(--ink); }
@media print { :root { --ink: #000; --soft: #333; --paper: #fff; --rule: #bbb; --accent: #2f6fb3;
  --mark: #c4541d; } body { margin: 0; max-width: none; font-size: 11px; }
  .bar, .cell { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def card_page(card: PartitionCard) -> str:
    """Return the page: figures, balance, traffic, memory, labels, and a table of all parts."""
    meta = card.meta
    title = f"{meta.dataset} in {meta.num_parts} parts by {meta.partitioner['method']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(_sections(card))}</body></html>\n"
    )


def _sections(card: PartitionCard) -> Iterator[str]:
    yield f"<p>{escape(card.folder)}: {escape(_options(card))}</p>"
    yield _table(("", "value"), _figures(card))
    yield from (f"<p>Note: {escape(note)}</p>" for note in card.meta.partitioner["notes"])
    quality = card.meta.quality
    yield "<h2>Balance</h2><p>Ranks wait for the one with most; the dashed line is the mean.</p>"
    for key, name in _counts(card):
        mean = sum(quality[key]) / len(quality[key])
        yield bars(quality[key], title=name, unit="", line=mean)
    if card.traffic is not None:
        yield "<h2>Traffic</h2><p>Rows of features that parts send each other in an exchange.</p>"
        yield heat_map(card.traffic, title="rows sent, from part (down) to part (across)")
    yield "<h2>Memory</h2>"
    yield (
        f"<p>Predicted for full-batch training of {LAYERS} layers of width {HIDDEN} in float32, "
        "one part a rank: data, features of halo nodes, and activations with their gradients.</p>"
    )
    yield bars(
        [size / 1e6 for size in card.training_bytes], title="megabytes", unit="MB", line=None
    )
    yield from _labels(card)
    yield "<h2>Parts</h2>"
    yield _part_table(card)


def _labels(card: PartitionCard) -> Iterator[str]:
    entropy = card.meta.quality.get("label_entropy")
    if not entropy:
        return
    averaged = ", averaged over labels" if entropy["task"] == "multilabel" else ""
    yield "<h2>Labels</h2>"
    yield (
        f"<p>Entropy of the labels of {escape(entropy['basis'])} nodes in each part{averaged}. The "
        "dashed line is that of the whole graph; low bars are parts that see few classes.</p>"
    )
    yield bars(entropy["entropy"], title="label entropy", unit="bits", line=entropy["whole"])


def _options(card: PartitionCard) -> str:
    options = card.meta.partitioner["options"]
    return " ".join(f"{name}={value}" for name, value in options.items()) or "no options"


def _counts(card: PartitionCard) -> list[tuple[str, str]]:
    named = [
        ("num_nodes", "nodes"),
        ("num_edges", "edges"),
        ("num_train", "training nodes"),
        ("num_halo", "halo nodes"),
    ]
    return [(key, name) for key, name in named if card.meta.quality.get(key) is not None]


def _figures(card: PartitionCard) -> list[tuple[str, str]]:
    meta, quality = card.meta, card.meta.quality
    entropy = quality.get("label_entropy")
    return [
        ("nodes", f"{meta.num_nodes:,}"),
        ("edges", f"{meta.num_edges:,}"),
        ("features", f"{meta.num_features:,}"),
        ("classes", f"{meta.num_classes or 0:,}"),
        ("replication factor", f"{quality['replication_factor']:.3f}"),
        ("edge cut", f"{quality['edge_cut']:,} ({quality['edge_cut_fraction']:.1%})"),
        *((f"{name}, max / mean", f"{value:.3f}") for name, value in quality["balance"].items()),
        ("largest halo", f"{max(quality['num_halo']):,}"),
        *([("label entropy, mean", f"{entropy['mean']:.3f} bits")] if entropy else []),
        *([("label entropy, spread", f"{entropy['spread']:.3f} bits")] if entropy else []),
        ("size on disk", f"{card.disk_bytes / 1e6:,.1f} MB"),
    ]


def _part_table(card: PartitionCard) -> str:
    counts, quality = _counts(card), card.meta.quality
    entropy = quality.get("label_entropy")
    header = ["part", *(name for _, name in counts), "data (MB)", "training (MB)"]
    header += ["entropy", "divergence"] if entropy else []
    rows = []
    for part in range(card.meta.num_parts):
        sizes = (card.data_bytes[part], card.training_bytes[part])
        row = [str(part), *(f"{quality[key][part]:,}" for key, _ in counts)]
        row += [f"{size / 1e6:,.1f}" for size in sizes]
        if entropy:
            bits = (entropy["entropy"][part], entropy["divergence"][part])
            row += ["-" if value is None else f"{value:.3f}" for value in bits]
        rows.append(row)
    return _table(header, rows)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
