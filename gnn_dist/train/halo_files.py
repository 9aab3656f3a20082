"""What ranks hold from step to step, beside a checkpoint: one file for each rank.

A checkpoint fits any partition; stale rows, and gradients still to be sent, fit only the ranks of
their run. So they lie in files of their own, which each rank writes and reads itself, and without
which a run can be resumed too: its first steps are then exact again, and what was left of gradients
is lost.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from gnn_dist.comm.world import World
from gnn_dist.train.checkpoint import CHECKPOINT_FOLDER, write_whole

__all__ = ["HaloFiles", "Keeper"]

LOG = logging.getLogger(__name__)


class Keeper(Protocol):
    """What may hold something from step to step."""

    @property
    def stateful(self) -> bool:
        """Whether it does; the same on all ranks."""

    @property
    def fingerprint(self) -> str:
        """Of all that its state depends on."""

    def state_dict(self) -> dict[str, Any]:
        """Return what it holds."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of a keeper with the same fingerprint."""


class HaloFiles:
    """This rank's file of what it holds; none where nothing outlives a step.

    Args:
        keepers: What may hold something.
        world: The ranks.
    """

    def __init__(self, keepers: Sequence[Keeper], world: World) -> None:
        self._keepers, self._world = [k for k in keepers if k.stateful], world
        self._run: Path | None = None

    @property
    def are_used(self) -> bool:
        """Whether there is anything to keep."""
        return bool(self._keepers)

    def open(self, run: Path | None) -> None:
        """Collective. Let all ranks know the run folder, which rank 0 gives."""
        if self.are_used:
            mine = None if run is None else str(run.resolve())
            self._run = Path(self._world.transport.all_gather_object(mine)[0])

    def save(self, epoch: int) -> None:
        """Write the state before an epoch, where this rank sees the run folder.

        It may be on another machine's disk, or the disk full: then a resumed run will be exact
        for a few steps, for which this one need not fail.
        """
        if self._run is None or not self._run.is_dir():
            return
        path = self._path(self._run)
        try:
            path.parent.mkdir(exist_ok=True)
            states = [keeper.state_dict() for keeper in self._keepers]
            write_whole(path, {**self._stamp(epoch), "states": states})
        except OSError as error:
            LOG.warning("%s could not be written: %s", path, error)

    def restore(self, run: Path, epoch: int) -> bool:
        """Collective. Load the state before an epoch, on all ranks or on none; return which."""
        if not self.are_used:
            return False
        states = self._read(self._path(run), epoch)
        have = self._world.transport.all_gather_object(states is not None)
        if states is None or not all(have):
            if self._world.is_main:
                missing = [rank for rank, has in enumerate(have) if not has]
                LOG.info("no stale rows to go on from on ranks %s: warming up again", missing)
            return False
        for keeper, state in zip(self._keepers, states, strict=True):
            keeper.load_state_dict(state)
        return True

    def _path(self, run: Path) -> Path:
        return run / CHECKPOINT_FOLDER / f"halo-{self._world.rank:04d}.pt"

    def _stamp(self, epoch: int) -> dict[str, Any]:
        prints = [keeper.fingerprint for keeper in self._keepers]
        return {"epoch": epoch, "fingerprints": prints}

    def _read(self, path: Path, epoch: int) -> list[dict[str, Any]] | None:
        """Return the states in a file, or None if they are not of this epoch and these rows."""
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            fits = all(values[name] == value for name, value in self._stamp(epoch).items())
            return list(values["states"]) if fits else None
        except Exception as error:  # torch raises many kinds for a damaged file
            LOG.debug("%s is no file of stale rows: %s", path, error)
            return None
