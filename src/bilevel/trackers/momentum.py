"""A moving average."""

from __future__ import annotations

from typing import Any

import jax

from bilevel._core.module import part
from bilevel.trackers.base import Memory, Oracle


@part
class Momentum:
    """d_k = (1 - momentum) d_{k-1} + momentum G(w_k; s_k): one evaluation a step, but the average lags behind.

    Args:
        per_task: keep one direction per task instead of their weighted sum.
    """

    per_task: bool = False

    def init(self, value: Any, point: Any) -> Memory:
        """Starts from a value; the point is not needed."""
        return Memory(value, ())

    def update(self, oracle: Oracle, point: Any, state: Memory, sample: Any, momentum: Any) -> tuple:
        """One evaluation of the oracle."""
        new, extra = oracle(point, sample)
        value = jax.tree.map(lambda n, d: d + momentum * (n - d), new, state.value)
        return value, extra, Memory(value, ())
