"""When a run must have ended."""

from __future__ import annotations

import time
from typing import NamedTuple


class Deadline(NamedTuple):
    """A moment, on a clock that nobody sets."""

    seconds: float  # that were given
    ends: float

    @classmethod
    def after(cls, seconds: float | None) -> Deadline | None:
        """So many seconds from now; None = never."""
        return None if seconds is None else cls(float(seconds), time.monotonic() + float(seconds))

    def __str__(self) -> str:
        return f"its time was over (seconds={self.seconds:g})"

    def is_within(self, seconds: float) -> bool:
        """Whether it is less than this away."""
        return time.monotonic() + seconds >= self.ends
