"""Sizes in bytes, as people write them."""

import re

from gnn_dist.errors import ConfigError

__all__ = ["parse_size", "size_text"]

UNITS = " KMGT"  # powers of 1024


def parse_size(text: str) -> int:
    """Return the bytes that a size such as `8G`, `1.5 GiB` or `300M` means (powers of 1024).

    Raises:
        ConfigError: It is no positive size.

    Example:
        >>> parse_size("1.5G")
        1610612736
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    size = int(float(found[1]) * 1024 ** UNITS.index(found[2].upper() or " ")) if found else 0
    if size < 1:
        raise ConfigError(f"a size must be a number with K, M, G or T behind it, got {text!r}")
    return size


def size_text(size: int) -> str:
    """Return what `parse_size` reads as this many bytes.

    Example:
        >>> size_text(256 << 20), size_text(1000)
        ('256M', '1000')
    """
    power = 0
    while size % 1024 == 0 and size and power + 1 < len(UNITS):
        size, power = size // 1024, power + 1
    return f"{size}{UNITS[power]}".strip()
