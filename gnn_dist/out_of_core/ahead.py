"""Reading one step ahead in a thread, so that the disk works while the processor does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items of an iterator whose next one a thread makes meanwhile.

    What the iterator raises is raised in its place.

    Example:
        >>> list(ahead(iter(range(3))))
        [0, 1, 2]
    """
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = pool.submit(next, items, None)
            yield item
