"""The base of trackers, and what they carry."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from jax.typing import ArrayLike

from bilevel.problem.per_task import Some

Value = TypeVar("Value")
PointT = TypeVar("PointT")
Sample = TypeVar("Sample")
Extra = TypeVar("Extra")

Oracle: TypeAlias = Callable[[PointT, Sample], tuple[Value, Extra]]
"""(point, sample) -> (value, extra): the same sample at two points gives two values with the same noise."""


class Memory(NamedTuple, Generic[Value, PointT]):
    """What a tracker carries: a value, and the point it was taken at."""

    value: Value
    point: PointT
    afresh: Some | None = None  # tasks whose own values are of an older point, so that they start anew; None = none is


class Update(NamedTuple, Generic[Value, Extra, PointT]):
    """What a tracker returns: the new value, what else the oracle returned at the new point, and the new memory."""

    value: Value
    extra: Extra
    memory: Memory[Value, PointT]


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
        oracle: Oracle[PointT, Sample, Value, Extra],
        point: PointT,
        memory: Memory[Value, PointT],
        sample: Sample,
        momentum: ArrayLike,
    ) -> Update[Value, Extra, PointT]:
        """The value at a new point, from the oracle there and the memory."""
