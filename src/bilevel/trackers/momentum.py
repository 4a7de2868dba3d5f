"""A moving average."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import ArrayLike

from bilevel._core.module import part
from bilevel.trackers.base import Extra, Memory, Oracle, PointT, Sample, Tracker, Update, Value


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
