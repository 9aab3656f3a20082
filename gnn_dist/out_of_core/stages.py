"""Work in stages that survives an interruption: a stage that is done leaves a stamp."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnn_dist.errors import ConfigError

__all__ = ["Stages"]

MARK = "gnn-dist-work"


@dataclass(frozen=True)
class Stages:
    """The stamps of a work folder.

    A stamp is a small JSON file, written when all files of the stage are on disk. It names what
    the stage was done for; one for something else counts as none.

    Attributes:
        folder: The work folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     stages = Stages.opened(Path(folder) / "work", resume=True)
        ...     stages.finish("sort", {"edges": 3}, {"rows": 2})
        ...     stages.done("sort", {"edges": 3}), stages.done("sort", {"edges": 4})
        ({'rows': 2}, None)
    """

    folder: Path

    @classmethod
    def opened(cls, folder: Path, *, resume: bool) -> "Stages":
        """Open a work folder, made or emptied where needed.

        Args:
            folder: The folder; nothing but a work folder is ever emptied.
            resume: Keep what an interrupted run left.

        Raises:
            ConfigError: The folder holds something else.
        """
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARK).is_file():
                raise ConfigError(
                    f"the work folder {folder} must be new, empty or left by an interrupted run, "
                    "got one with other files: choose another"
                )
            if not resume:
                shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARK).touch()
        return cls(folder)

    def done(self, stage: str, task: dict[str, Any]) -> dict[str, Any] | None:
        """Return what a stage left, or None if it is not done for this task."""
        try:
            stamp = json.loads(self._stamp(stage).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(stamp, dict) or stamp.get("task") != json.loads(json.dumps(task)):
            return None
        left: dict[str, Any] = stamp["left"]
        return left

    def begin(self, stage: str) -> None:
        """Take a stage's stamp away before its files change."""
        self._stamp(stage).unlink(missing_ok=True)

    def finish(
        self, stage: str, task: dict[str, Any], left: dict[str, Any], files: Sequence[str] = ()
    ) -> None:
        """Stamp a stage. Its files reach the disk first, in case the machine fails."""
        for name in files:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
        temporary = self.folder / f"{stage}.json.tmp"
        temporary.write_text(json.dumps({"task": task, "left": left}))
        os.replace(temporary, self._stamp(stage))

    def remove(self) -> None:
        """Delete the work folder."""
        shutil.rmtree(self.folder)

    def _stamp(self, stage: str) -> Path:
        return self.folder / f"{stage}.json"
