"""Variance reduction: what is carried from step to step to make a noisy direction less noisy.

STORM is recursive momentum, `Momentum` a moving average, and SAGA a table of the last value of every block of the data.
`Tracker` is the base to write one's own from.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from bilevel._core.module import part
from bilevel.problem.per_task import Some

__all__ = ["Momentum", "Storm", "Tracker"]

Value = TypeVar("Value")
PointT = TypeVar("PointT")
Sample = TypeVar("Sample")
Extra = TypeVar("Extra")

Oracle: TypeAlias = Callable[[PointT, Sample], tuple[Value, Extra]]
"""(point, sample) -> (value, extra): the same sample at two points gives two values with the same noise."""


class Memory(NamedTuple, Generic[Value, PointT]):
    """State of a tracker: a value, and the point at which it was taken."""

    value: Value
    point: PointT
    afresh: Some | None = None  # tasks whose own values are of an older point, so that they start anew; None = none is


class Update(NamedTuple, Generic[Value, Extra, PointT]):
    """Output of a tracker: the new value, the oracle's other output at the new point, and the new state."""

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


@part
class Storm(Tracker):
    """d_k = G(w_k; s_k) + (1 - momentum) (d_{k-1} - G(w_{k-1}; s_k)), both G on the same sample s_k.

    momentum = 1 is the plain stochastic value. With an exact oracle d_k is exact, whatever the momentum: the old term
    is evaluated at the stored old point, including the weights and the estimator's state of that time.

    Args:
        per_task: keep one direction per task instead of their weighted sum: memory n d_x, and the weights may move
            faster.

    Reference: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD", NeurIPS 2019.
    """

    per_task: bool = False

    def init(self, value: Value, point: PointT) -> Memory[Value, PointT]:
        """Starts from a value."""
        return Memory(value, point)

    def update(
        self,
        oracle: Oracle[PointT, Sample, Value, Extra],
        point: PointT,
        memory: Memory[Value, PointT],
        sample: Sample,
        momentum: ArrayLike,
    ) -> Update[Value, Extra, PointT]:
        """Two evaluations of the oracle on one sample."""
        new, extra = oracle(point, sample)
        old, _ = oracle(memory.point, sample)
        value = jax.tree.map(lambda n, d, o: n + (1 - momentum) * (d - o), new, memory.value, old)
        value = value if memory.afresh is None else memory.afresh.pick(new, value)
        return Update(value, extra, Memory(value, point))


@part
class Momentum(Tracker):
    """d_k = (1 - momentum) d_{k-1} + momentum G(w_k; s_k): one evaluation a step, but the average lags behind.

    Args:
        per_task: keep one direction per task instead of their weighted sum.
    """

    per_task: bool = False

    def init(self, value: Value, point: object) -> Memory[Value, Any]:
        """Starts from a value; the point is not needed."""
        return Memory(value, ())

    def update(
        self,
        oracle: Oracle[PointT, Sample, Value, Extra],
        point: PointT,
        memory: Memory[Value, PointT],
        sample: Sample,
        momentum: ArrayLike,
    ) -> Update:
        """One evaluation of the oracle."""
        new, extra = oracle(point, sample)
        value = jax.tree.map(lambda n, d: d + momentum * (n - d), new, memory.value)
        return Update(value, extra, Memory(value, ()))


class Table(NamedTuple, Generic[Value]):
    """The last value of every block, and their mean weighted by the blocks' shares of the rows."""

    entries: Value  # leaves (blocks, ...)
    mean: Value


def start_table(values: Value, shares: jax.Array) -> Table[Value]:
    """A full table: where all values were taken at one point, its first direction there is exact."""
    return Table(values, jax.tree.map(lambda v: jnp.tensordot(shares.astype(v.dtype), v, 1), values))


def look_up(table: Table[Value], block: jax.Array, value: Value, share: jax.Array) -> tuple[Value, Table[Value]]:
    """d = G_j - T_j + mean(T), then T_j <- G_j: the direction and the new table.

    With j drawn in proportion to the shares, the mean of d over j is the full value, whatever the table holds.

    Reference: Defazio, Bach, Lacoste-Julien, "SAGA: a fast incremental gradient method with support for non-strongly
    convex composite objectives", NeurIPS 2014.
    """
    change = jax.tree.map(lambda new, old: new - old[block], value, table.entries)
    direction = jax.tree.map(lambda c, m: c + m, change, table.mean)
    entries = jax.tree.map(lambda t, new: t.at[block].set(new), table.entries, value)
    mean = jax.tree.map(lambda m, c: m + (share * c).astype(m.dtype), table.mean, change)
    return direction, Table(entries, mean)
