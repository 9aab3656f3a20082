"""A folder that appears under its name when it is complete, and not before."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gnn_dist.errors import ShardFormatError

__all__ = ["new_folder"]


@contextmanager
def new_folder(out: Path, replaceable: Callable[[Path], bool], overwrite: bool) -> Iterator[Path]:
    """Yield a folder beside `out` to write in, which takes its name at the end.

    Args:
        out: The folder to make; its parents are made too.
        replaceable: Whether a folder that exists is of the same kind. Others are never replaced.
        overwrite: Replace such a folder.

    Raises:
        ShardFormatError: `out` exists and may not be replaced, or cannot be written.
    """
    out = out.resolve() if out.is_symlink() else out
    if out.exists():
        if not replaceable(out):
            raise ShardFormatError(
                f"{out} exists and is no folder of this format: choose another --out"
            )
        if not overwrite:
            raise ShardFormatError(
                f"{out} exists: choose another --out, or replace it with --overwrite"
            )
    temporary = _beside(out, "tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        old = _beside(out, "old")
        if out.exists():
            os.rename(out, old)
        os.rename(temporary, out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise ShardFormatError(f"cannot write the folder {out}: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(out: Path, ending: str) -> Path:
    return out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}.{ending}")
