"""Reading torch files of others without running what they may hold.

`torch.load(weights_only=True)` would do, but PyG saves edge features in a `defaultdict`, which it
refuses to fill. So this is the same idea with a list of our own: tensors and dicts, nothing else.
"""

import pickle
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gnn_dist.errors import ShardFormatError

__all__ = ["load_tensors"]

DTYPES = ("Bool", "Byte", "Char", "Short", "Int", "Long", "Half", "BFloat16", "Float", "Double")
HARMLESS = frozenset(
    {
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("torch._utils", "_rebuild_tensor_v2"),
        *(("torch", f"{dtype}Storage") for dtype in DTYPES),
    }
)


class _Unpickler(pickle.Unpickler):
    """Makes tensors and dicts; refuses everything else before it is called."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - a class or a function
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it holds {module}.{name}, which is not loaded")
        return super().find_class(module, name)


def load_tensors(path: Path) -> Any:  # noqa: ANN401 - tensors, and dicts of them
    """Return the tensors and dicts of tensors that `torch.save` wrote, on the CPU.

    Raises:
        ShardFormatError: The file is missing or damaged, or holds something else.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            # Programs in TorchScript have this file; torch.load would turn to another reader.
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise pickle.UnpicklingError("it holds a program")
        return torch.load(
            path,
            map_location="cpu",
            weights_only=False,
            pickle_module=SimpleNamespace(Unpickler=_Unpickler, __name__="pickle"),
        )
    except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ShardFormatError(f"{path} is missing or damaged: {error}") from error
