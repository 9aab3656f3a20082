"""Two kinds of pictures as SVG text: bars and a heat map. Colours are the page's variables."""

from collections.abc import Sequence
from html import escape

__all__ = ["bars", "heat_map"]

WIDTH = 640
BAR_TOP, BAR_HEIGHT, BAR_FOOT = 16, 120, 20
NUMBERED = 12  # parts up to which bars and cells have room for numbers
TICKS = 16  # labels along an axis that are told apart


def bars(values: Sequence[float | None], *, title: str, unit: str, line: float | None) -> str:
    """Draw one bar per part, and a line to compare them with.

    Args:
        values: One for each part; None draws no bar.
        title: Over the picture.
        unit: After the number that a bar shows when pointed at.
        line: Height of the dashed line, such as the mean; None for none.
    """
    top = max([value for value in values if value is not None] + [line or 0.0, 1e-12])
    step = WIDTH / max(1, len(values))
    shapes = []
    for part, value in enumerate(values):
        height = BAR_HEIGHT * (value or 0.0) / top
        tip = "none" if value is None else f"{_number(value)} {unit}"
        shapes.append(
            f'<rect class="bar" x="{part * step + step * 0.1:.2f}" y="{BAR_HEIGHT - height:.2f}" '
            f'width="{step * 0.8:.2f}" height="{height:.2f}">'
            f"<title>part {part}: {escape(tip.strip())}</title></rect>"
        )
    if line is not None:
        y = BAR_HEIGHT * (1 - line / top)
        shapes.append(f'<line class="mean" x1="0" x2="{WIDTH}" y1="{y:.2f}" y2="{y:.2f}"/>')
    shapes.append(f'<line class="axis" x1="0" x2="{WIDTH}" y1="{BAR_HEIGHT}" y2="{BAR_HEIGHT}"/>')
    if len(values) <= NUMBERED:
        shapes += [
            f'<text class="count dark" x="{(part + 0.5) * step:.2f}" '
            f'y="{BAR_HEIGHT - BAR_HEIGHT * value / top - 4:.2f}">{_number(value)}</text>'
            for part, value in enumerate(values)
            if value is not None
        ]
    shapes += [
        f'<text class="tick" x="{(part + 0.5) * step:.2f}" y="{BAR_HEIGHT + 15}">{part}</text>'
        for part in range(0, len(values), _every(len(values)))
    ]
    moved = f'<g transform="translate(0 {BAR_TOP})">{"".join(shapes)}</g>'
    return _picture(title, WIDTH, BAR_TOP + BAR_HEIGHT + BAR_FOOT, [moved])


def heat_map(counts: Sequence[Sequence[int]], *, title: str) -> str:
    """Draw a square of cells, row p column q, the darker the larger the number.

    Args:
        counts: P rows of P numbers.
        title: Over the picture.
    """
    num_parts, margin = len(counts), 30
    cell = (min(WIDTH, 60 * num_parts + margin) - margin) / max(1, num_parts)
    top = max((max(row) for row in counts), default=0) or 1
    shapes = []
    for p, row in enumerate(counts):
        for q, count in enumerate(row):
            x, y = margin + q * cell, margin + p * cell
            shapes.append(
                f'<rect class="cell" x="{x:.2f}" y="{y:.2f}" width="{cell:.2f}" '
                f'height="{cell:.2f}" fill-opacity="{count / top:.3f}">'
                f"<title>part {p} to part {q}: {count:,} rows</title></rect>"
            )
            if num_parts <= NUMBERED:
                shade = "light" if count / top > 0.55 else "dark"
                shapes.append(
                    f'<text class="count {shade}" x="{x + cell / 2:.2f}" '
                    f'y="{y + cell / 2 + 4:.2f}">{_number(count)}</text>'
                )
    for part in range(0, num_parts, _every(num_parts)):
        middle = margin + (part + 0.5) * cell
        shapes.append(f'<text class="tick" x="{middle:.2f}" y="{margin - 8}">{part}</text>')
        shapes.append(f'<text class="tick" x="{margin - 14}" y="{middle + 4:.2f}">{part}</text>')
    side = margin + cell * num_parts + 2
    return _picture(title, side, side, shapes)


def _picture(title: str, width: float, height: float, shapes: Sequence[str]) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px" '
        f'role="img" aria-label="{escape(title)}">{"".join(shapes)}</svg></figure>'
    )


def _every(count: int) -> int:
    return -(-count // TICKS)


def _number(value: float) -> str:
    """Write a number in few characters: 950, 12.3k, 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.3g}"
