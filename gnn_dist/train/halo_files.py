"""What halo policies hold from step to step, beside a checkpoint: one file for each rank.

A checkpoint fits any partition; stale rows fit only that of their run. So they lie in files of
their own, which each rank writes and reads itself, and without which a run can be resumed too: its
first steps are then exact again.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gnn_dist.comm.world import World
from gnn_dist.halo.exchange import ExchangeMaker
from gnn_dist.train.checkpoint import CHECKPOINT_FOLDER, write_whole

__all__ = ["HaloFiles"]

LOG = logging.getLogger(__name__)


class HaloFiles:
    """This rank's file of stale rows; nothing at all under a policy that holds none.

    Args:
        exchanges: What makes those of training.
        world: The ranks.
    """

    def __init__(self, exchanges: Sequence[ExchangeMaker], world: World) -> None:
        self._exchanges, self._world = exchanges, world
        self._run: Path | None = None

    @property
    def are_used(self) -> bool:
        """Whether there is anything to keep."""
        return any(maker.policy.stateful for maker in self._exchanges)

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
            states = [maker.state_dict() for maker in self._exchanges]
            write_whole(path, {**self._stamp(epoch), "exchanges": states})
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
        for maker, state in zip(self._exchanges, states, strict=True):
            maker.load_state_dict(state)
        return True

    def _path(self, run: Path) -> Path:
        return run / CHECKPOINT_FOLDER / f"halo-{self._world.rank:04d}.pt"

    def _stamp(self, epoch: int) -> dict[str, Any]:
        prints = [maker.fingerprint for maker in self._exchanges]
        return {"epoch": epoch, "fingerprints": prints}

    def _read(self, path: Path, epoch: int) -> list[dict[str, Any]] | None:
        """Return the states in a file, or None if they are not of this epoch and these rows."""
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            fits = all(values[name] == value for name, value in self._stamp(epoch).items())
            return list(values["exchanges"]) if fits else None
        except Exception as error:  # torch raises many kinds for a damaged file
            LOG.debug("%s is no file of stale rows: %s", path, error)
            return None
