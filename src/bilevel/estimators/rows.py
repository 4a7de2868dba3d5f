"""Rows as a weighted set: in an order that depends on what they hold, identical ones as one row of a larger weight.

What is learnt is a function of the set of rows. Written as "sort, merge, then go on", this is exact: rows in another
order, or a row of weight 2 in place of the same row twice, give the same numbers to the last bit, as do rows of weight
0 and rows that are not there. The order within a task is that of a hash whose constants come from the seed, so that it
is as good as random, and neither names nor numbers of tasks matter to it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CHUNK = 16384  # rows that are worked on at once: no copy of all data is ever made


class Rows(NamedTuple):
    """What is learnt from, task by task; one entry a row."""

    place: np.ndarray  # where in X it is
    task: np.ndarray  # the number of its task
    target: np.ndarray
    weight: np.ndarray
    part: np.ndarray  # the number of its part, see `parts`

    def take(self, chosen: np.ndarray) -> Rows:
        """Some of the rows, by their numbers or a mask."""
        return Rows(*(column[chosen] for column in self))


def merged(
    X: np.ndarray, task: np.ndarray, target: np.ndarray, weight: np.ndarray, part: np.ndarray, seed: int
) -> Rows:
    """The rows with a positive weight, ordered by task and hash, identical ones merged.

    >>> X, one = np.array([[1.0], [2.0], [1.0]]), np.zeros(3, int)
    >>> rows = merged(X, one, one, np.array([1.0, 3.0, 1.5]), one, seed=0)
    >>> sorted(zip(X[rows.place, 0].tolist(), rows.weight.tolist()))
    [(1.0, 2.5), (2.0, 3.0)]
    """
    present = np.flatnonzero(weight > 0)
    extra = np.column_stack([target, part]).astype(np.float64)
    hashes = _hashes(X, extra, present, np.random.default_rng(seed))
    order = np.lexsort((hashes, task[present]))
    present, hashes = present[order], hashes[order]
    new = np.ones(len(present), bool)
    alike = 1 + np.flatnonzero((hashes[1:] == hashes[:-1]) & (np.diff(task[present]) == 0))
    # A hash may be that of two different rows: those that agree are compared in full.
    same = [np.array_equal(X[a], X[b]) and np.array_equal(extra[a], extra[b]) for a, b in _pairs(present, alike)]
    new[alike] = ~np.array(same, bool)
    first = present[new]
    return Rows(first, task[first], target[first], np.add.reduceat(weight[present], np.flatnonzero(new)), part[first])


def _pairs(present: np.ndarray, places: np.ndarray) -> zip[tuple[int, int]]:
    return zip(present[places - 1].tolist(), present[places].tolist(), strict=True)


def _hashes(X: np.ndarray, extra: np.ndarray, index: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One number of 64 bits a row: the sum of its entries, each mixed (splitmix64) after its column's own shift."""
    shifts = generator.integers(0, 2**64, X.shape[1] + extra.shape[1], np.uint64, endpoint=False)
    hashes = np.empty(len(index), np.uint64)
    for start in range(0, len(index), CHUNK):
        own = index[start : start + CHUNK]
        numbers = np.concatenate([X[own].astype(np.float64), extra[own]], axis=1)
        numbers += 0.0  # -0.0 equals 0.0 and has other bits
        hashes[start : start + CHUNK] = _mixed(numbers.view(np.uint64) + shifts).sum(axis=1, dtype=np.uint64)
    return hashes


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
