"""The base of trackers, and what they carry."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from jax.typing import ArrayLike

Value = TypeVar("Value")
Point = TypeVar("Point")
Sample = TypeVar("Sample")
Extra = TypeVar("Extra")

Oracle: TypeAlias = Callable[[Point, Sample], tuple[Value, Extra]]
"""(point, sample) -> (value, extra): the same sample at two points gives two values with the same noise."""


class Memory(NamedTuple, Generic[Value, Point]):
    """What a tracker carries: a value, and the point it was taken at."""

    value: Value
    point: Point


class Update(NamedTuple, Generic[Value, Extra, Point]):
    """What a tracker returns: the new value, what else the oracle returned at the new point, and the new memory."""

    value: Value
    extra: Extra
    memory: Memory[Value, Point]


class Tracker(abc.ABC):
    """Follows the value of a noisy oracle along a path of points.

    To write one, make a part (`bl.part`) that inherits from this class and has `init` and `update`. The point is stored
    beside the value, so that old and new cannot be confused: `memory.point` holds everything that the oracle was
    evaluated at, including the weights and the estimator's state of that time.

    `update` is pure, and runs inside `jax.jit`: no side effects, no Python branches on values.
    """

    per_task: bool = False  # one value per task (memory n d_x) rather than one for their weighted sum

    @abc.abstractmethod
    def init(self, value: Value, point: object) -> Memory[Value, Any]:
        """Starts from a value at a point."""

    @abc.abstractmethod
    def update(
        self,
        oracle: Oracle[Point, Sample, Value, Extra],
        point: Point,
        memory: Memory[Value, Point],
        sample: Sample,
        momentum: ArrayLike,
    ) -> Update[Value, Extra, Point]:
        """The value at a new point, from the oracle there and the memory."""
