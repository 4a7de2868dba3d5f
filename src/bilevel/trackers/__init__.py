"""Variance reduction: what is carried from step to step to make a noisy direction less noisy.

`Tracker` is the base to write one's own from.
"""

from bilevel.trackers.base import Tracker
from bilevel.trackers.momentum import Momentum
from bilevel.trackers.storm import Storm

__all__ = ["Momentum", "Storm", "Tracker"]
