"""Ranks of solvers, with intervals over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95
ROUNDING = 1e-6  # a loss is lower by more than this share of it


class Rank(NamedTuple):
    """A place, from 1, and where it lies in 95 % of the resamples of the seeds; NaN with fewer than two seeds."""

    place: int
    low: float
    high: float

    def ties(self, other: Rank) -> bool:
        """Whether the places are the same, or their intervals overlap."""
        return self.place == other.place or (self.low <= other.high and other.low <= self.high)


def typical(losses: np.ndarray) -> np.ndarray:
    """The mean over the last axis; the median where some are infinite, because their runs diverged."""
    return np.where(np.isinf(losses).any(axis=-1), np.median(losses, axis=-1), losses.mean(axis=-1))


def places(losses: np.ndarray) -> np.ndarray:
    """Places of solvers by their losses, (solvers, ..., seeds): fewer runs that diverged first, then lower losses.

    Equal ones, but for rounding, share the first of their places.
    """
    diverged, loss = np.isinf(losses).mean(axis=-1), typical(losses)
    fewer = diverged[None] < diverged[:, None]
    below = np.where(np.isinf(loss), loss, loss - ROUNDING * np.abs(np.where(np.isinf(loss), 0, loss)))
    lower = (diverged[None] == diverged[:, None]) & (loss[None] < below[:, None])
    return 1 + (fewer | lower).sum(axis=1)


def ranks(losses: np.ndarray) -> list[Rank]:
    """The rank of every solver from its losses, (solvers, seeds); infinite where a run diverged.

    All solvers have the same seeds, and a resample draws the same seeds for all of them: what is hard about a seed is
    hard for all, and cancels.
    """
    seeds = losses.shape[1]
    place = places(losses)
    if seeds < 2:
        return [Rank(int(p), float("nan"), float("nan")) for p in place]
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    again = places(losses[:, drawn])
    low, high = np.quantile(again, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=1, method="nearest")
    return [Rank(int(p), float(a), float(b)) for p, a, b in zip(place, low, high, strict=True)]


def ranked(losses: Sequence[Sequence[float]]) -> list[Rank]:
    """`ranks` of rows that may differ in length: of the seeds that all have."""
    if not losses:
        return []
    seeds = min(map(len, losses))
    return ranks(np.array([row[:seeds] for row in losses], float))
