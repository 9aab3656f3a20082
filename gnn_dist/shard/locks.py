"""Keeping two processes out of one folder: a lock that ends with the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["locked"]


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, and yield whether no other process holds it.

    The kernel lets go of it when the process ends, however it ends. The folder may be renamed
    meanwhile. On a file system without locks everybody gets them.

    Raises:
        OSError: There is no such folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     with locked(Path(name)) as first, locked(Path(name)) as second:
        ...         first, second
        (True, False)
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems lock no folders
        return True
    return True
