"""Words of random bits by id, as `csrc/draws.h` has them: int64 tensors, read as unsigned."""

import torch
from torch import Tensor

__all__ = ["GOLDEN", "MULTIPLIERS", "mix", "row_keys", "words"]

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def mix(z: Tensor) -> Tensor:
    """Mix 64 bits, bijectively.

    Source: the finalizer of SplitMix64, "Fast Splittable Pseudorandom Number Generators" (Steele,
    Lea, Flood, 2014).
    """
    z = (z ^ ((z >> 30) & (2**34 - 1))) * MULTIPLIERS[0]
    z = (z ^ ((z >> 27) & (2**37 - 1))) * MULTIPLIERS[1]
    return z ^ ((z >> 31) & (2**33 - 1))


def row_keys(key: int, ids: Tensor) -> Tensor:
    """Return int64 (n,), what the words of each id (n,) start from; `key` is `DrawKey.value`."""
    return mix(mix(ids + GOLDEN) ^ key)


def words(keys: Tensor, num: int) -> Tensor:
    """Return int64 (n, num), the first words of each row key (n,)."""
    counter = torch.arange(1, num + 1, device=keys.device)
    return mix(keys[:, None] + counter * GOLDEN)
