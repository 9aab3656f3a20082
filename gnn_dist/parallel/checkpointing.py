"""Parts of a model that a backward runs again: `torch.utils.checkpoint` with use_reentrant=False.

    forward   checkpoint(f, x)   the place is noted: exchanges and draws so far
    backward  f(x) once more     followed as the forward was, from that place on

So the rows that are fetched, the sums over ranks and the draws are those of the forward.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from gnn_dist.errors import ConfigError
from gnn_dist.parallel.call import Call, Place

__all__ = ["Followed", "Replayer"]

# Has the functions of a model be seen, as those of a call.
Followed = Callable[[Call], AbstractContextManager[None]]
NOTED = "_gnn_dist_noted"


class Replayer:
    """Has what a checkpoint runs again be followed like the forward of a call.

    Args:
        followed: Begins to follow.
        policy: The halo policy in use, if it is one that would bring other rows the second time.
    """

    def __init__(self, followed: Followed, policy: str = "") -> None:
        self._followed, self._policy = followed, policy

    def note(self, call: Call) -> None:
        """Note where a call is, if a checkpoint has begun since the last time.

        Raises:
            ConfigError: Rows would be other ones the second time.
        """
        frame = _checkpoint()
        if frame is None or hasattr(frame, NOTED):
            return
        if self._policy:
            raise ConfigError(
                f"torch.utils.checkpoint runs layers again, and under halo={self._policy!r} they "
                "would get other rows: use an exact policy, such as overlap or remat"
            )
        setattr(frame, NOTED, True)
        frame.recompute_fn = partial(self._again, call, call.place(), frame.recompute_fn)

    def _again(self, call: Call, place: Place, run: Callable[..., None], *args: Any) -> None:
        with call.back_at(place), self._followed(call):
            run(*args)


def _checkpoint() -> Any:
    """Return the checkpoint whose forward runs now, or None.

    It has no public name; the function that it packs saved tensors with holds it.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    pack = hooks[0] if hooks else None
    if not getattr(pack, "__qualname__", "").startswith("_checkpoint_hook."):
        return None
    cells = dict(zip(pack.__code__.co_freevars, pack.__closure__ or (), strict=True))
    return cells["frame"].cell_contents if "frame" in cells else None
