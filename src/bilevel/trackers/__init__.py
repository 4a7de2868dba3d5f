"""Variance reduction: what is carried from step to step to make a noisy direction less noisy.

A tracker is a part with `init(value, point) -> state` and
`update(oracle, point, state, sample, momentum) -> (value, extra, state)`, where `oracle(point, sample)` returns
(value, extra). It stores the point beside the value, so that old and new cannot be confused.
"""

from bilevel.trackers.momentum import Momentum
from bilevel.trackers.storm import Storm

__all__ = ["Momentum", "Storm"]
