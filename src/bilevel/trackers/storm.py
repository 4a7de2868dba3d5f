"""STORM: recursive momentum."""

from __future__ import annotations

import jax
from jax.typing import ArrayLike

from bilevel._core.module import part
from bilevel.trackers.base import Extra, Memory, Oracle, PointT, Sample, Tracker, Update, Value


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
