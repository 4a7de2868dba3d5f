"""The protocol of trackers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

Oracle = Callable[[Any, Any], tuple[Any, Any]]


class Memory(NamedTuple):
    """A value and the point it speaks of."""

    value: Any
    point: Any


class Tracker(Protocol):
    """Follows the value of a noisy oracle along a path of points."""

    @property
    def per_task(self) -> bool:
        """One value per task (memory n d_x) rather than one for their weighted sum."""
        ...

    def init(self, value: Any, point: Any) -> Memory:
        """Starts from a value."""
        ...

    def update(self, oracle: Oracle, point: Any, state: Memory, sample: Any, momentum: Any) -> tuple:
        """Returns the new value, whatever else the oracle returned at the new point, and the new state."""
        ...
