"""The compiled operators, `torch.ops.gnn_dist`, and what runs where they have no kernel.

Every operator has one schema and several implementations, among which PyTorch chooses by device:
C++ on the CPU (`csrc/`), plain PyTorch elsewhere (`ops/reference/`), shapes alone for tracing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

__all__ = ["kernels", "operator"]

LIBRARY = Path(__file__).with_name("kernels.so")

Function = TypeVar("Function", bound=Callable[..., Any])


def _load() -> Any:
    try:
        torch.ops.load_library(LIBRARY)  # type: ignore[no-untyped-call]
    except OSError as error:
        what = "cannot be loaded" if LIBRARY.exists() else "are not built"
        raise ImportError(
            f"gnn-dist's compiled operators {what} ({LIBRARY}): install the package with "
            f"`pip install .`, or in its source folder run `pip install -e .` ({error})"
        ) from error
    return torch.ops.gnn_dist


kernels = _load()


def operator(fake: Callable[..., Any]) -> Callable[[Function], Function]:
    """Register a function as what the operator of its name does on devices without a kernel.

    Args:
        fake: Takes the same arguments, returns outputs of the right shape and dtype.
    """

    def register(function: Function) -> Function:
        name = f"gnn_dist::{function.__name__}"
        torch.library.impl(name, "default", function)
        torch.library.register_fake(name, fake)
        return function

    return register
