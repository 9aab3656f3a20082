"""One word of a halo policy, and what it may say of itself."""

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

__all__ = ["Stage", "Term"]

Stage = Literal["select", "encode", "schedule", "path"]


@dataclass(frozen=True)
class Term:
    """One word of a policy and its options.

    Attributes:
        name: The word.
        stage: What it decides; a policy has at most one term of a stage.
        exact: Whether results are those of one process.
        holds: Whether rows that do not arrive in a step keep what they were before.
        agrees: Whether ranks agree on something while they encode: all of them must post every
            exchange, also one without rows.
        without: Stages whose terms it cannot go with, and why.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    agrees: ClassVar[bool] = False
    without: ClassVar[dict[Stage, str]] = {}

    def check(self) -> None:
        """Raise ConfigError for options that cannot work."""

    @property
    def needs_all_rows(self) -> str:
        """Why every row must travel in every step; "" if none must."""
        return ""

    def row_bytes(self, num_cols: int, itemsize: int, *, gradients: bool) -> int:
        """Return the bytes of a row of floating-point numbers on the wire."""
        del gradients
        return num_cols * itemsize

    def __str__(self) -> str:
        changed = [
            f"{f.name}={f.metadata.get('write', _text)(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.name + (":" + ",".join(changed) if changed else "")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
