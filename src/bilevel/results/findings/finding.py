"""One thing that was found of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

Number = float | int | str


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that a run shows, with a remedy; `str` of it is its sentence.

    Attributes:
        kind: in two or three words, the same for all findings of one check: "overfitting", "still falling".
        text: a sentence with the numbers and what to do.
        numbers: what it rests on, by name: plain numbers, and names of tasks.
    """

    kind: str
    text: str
    numbers: Mapping[str, Number] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.text


def finding(kind: str, text: str, **numbers: Any) -> Finding:
    """The same from numbers of any type; JSON has no infinite ones, which are left out."""
    own = {name.replace("_", " "): _plain(value) for name, value in numbers.items()}
    return Finding(kind, text, {name: value for name, value in own.items() if value is not None})


def _plain(value: Any) -> Number | None:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else str(value)
