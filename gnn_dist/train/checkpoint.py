"""Checkpoints: tensors and plain values only, written whole or not at all."""

import io
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gnn_dist.comm.world import World
from gnn_dist.errors import ConfigError

__all__ = ["Checkpoint", "read_checkpoint", "write_checkpoint", "write_whole"]

CHECKPOINT_FOLDER = "checkpoint"
LAST, BEST = "last.pt", "best.pt"


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to go on. It depends on the graph, not on the partition.

    Attributes:
        epoch: The epoch that comes next.
        fingerprint: Of the graph.
        options: `TrainConfig.mathematics()` of the run.
        model: `state_dict` of the model.
        optimizer: `state_dict` of the optimiser.
        scheduler: `state_dict` of the scheduler.
        progress: `Progress.to_dict()`.
    """

    epoch: int
    fingerprint: str
    options: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any]
    progress: dict[str, Any]


def write_checkpoint(run: Path, checkpoint: Checkpoint, name: str = LAST) -> None:
    """Write a checkpoint into a run folder, replacing an older one only when it is complete."""
    (run / CHECKPOINT_FOLDER).mkdir(parents=True, exist_ok=True)
    write_whole(run / CHECKPOINT_FOLDER / name, asdict(checkpoint))


def write_whole(path: Path, values: dict[str, Any]) -> None:
    """Write tensors and plain values into a file, replacing an older one only when complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        torch.save(values, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_checkpoint(
    run: str | Path, world: World, name: str = LAST, *, tables: Collection[str] = ()
) -> Checkpoint:
    """Collective. Read a checkpoint on rank 0 and give it to all ranks.

    Only rank 0 needs to see the run folder. Nothing in the file is executed.

    Args:
        run: The run folder.
        world: The ranks.
        name: Which of its checkpoints.
        tables: Names in the model's state of what has a row for each node, which other ranks are
            not to hold. If there are any, they and the optimiser's state are on rank 0 alone.

    Raises:
        ConfigError: On every rank, if there is no such checkpoint or it is damaged.
    """
    path = Path(run) / CHECKPOINT_FOLDER / name
    data = b""
    with world.everywhere(f"reading {path}"):
        if world.is_main:
            data = _read(path)
    if not tables:
        return _parse(world.transport.all_gather_object(data)[0], path)
    read = _parse(data, path) if world.is_main else None
    told = None
    if read is not None:
        rest = {name: value for name, value in read.model.items() if name not in tables}
        told = replace(read, model=rest, optimizer={})
    told = world.transport.all_gather_object(told)[0]
    return read or told


def _read(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}): is {path.parent.parent} a run folder?"
        ) from error
    _parse(data, path)
    return data


def _parse(data: bytes, path: Path) -> Checkpoint:
    try:
        return Checkpoint(**torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises many kinds for a damaged file
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(f"{path} is damaged ({reason}): use an older run folder") from error
