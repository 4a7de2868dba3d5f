"""The rows that an estimator learns from: merged into a weighted set, split into parts, and standardised.

The model depends on the set of rows only. Rows are sorted by their content and identical rows are merged before
anything else happens, so this is exact to the last bit: the order of rows does not matter, a row of weight 2 equals the
same row twice, and a row of weight 0 equals no row. Within a task, rows are ordered by a hash whose constants come from
the seed. The order is as good as random, and does not depend on the names or numbers of tasks.

The rows of a task are split into three parts. Training rows fit its head, validation rows fit what tasks share, and
selection rows choose among the points that a run reaches.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from bilevel import split

CHUNK = 16384  # rows that are processed at once, so that the data are never copied as a whole
EVALUATED = 4096  # validation or selection rows of a task that are used at most: their mean is precise enough
PARTS = ("train", "validation", "selection")
UNKNOWN = -1  # the part of a row that is not assigned yet
FEWEST = 4  # rows that a task needs to be split


class WeightedRows(NamedTuple):
    """The rows to learn from, ordered by task; one entry a row."""

    place: np.ndarray  # its row in X
    task: np.ndarray  # the number of its task
    target: np.ndarray
    weight: np.ndarray
    part: np.ndarray  # an index into PARTS, or UNKNOWN

    def take(self, chosen: np.ndarray) -> WeightedRows:
        """Selects rows by their numbers or by a mask."""
        return WeightedRows(*(column[chosen] for column in self))


def merged(
    X: np.ndarray, task: np.ndarray, target: np.ndarray, weight: np.ndarray, part: np.ndarray, seed: int
) -> WeightedRows:
    """Orders the rows of positive weight by task and hash, and merges identical ones.

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
    # Two different rows may have the same hash, so rows with equal hashes are compared in full.
    pairs = zip(present[alike - 1].tolist(), present[alike].tolist(), strict=True)
    same = [np.array_equal(X[a], X[b]) and np.array_equal(extra[a], extra[b]) for a, b in pairs]
    new[alike] = ~np.array(same, bool)
    first, whole = present[new], np.add.reduceat(weight[present], np.flatnonzero(new))
    return WeightedRows(first, task[first], target[first], whole, part[first])


def _hashes(X: np.ndarray, extra: np.ndarray, index: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A 64-bit hash of each row: the sum of its entries, shifted by a constant of the column and mixed (splitmix64)."""
    shifts = generator.integers(0, 2**64, X.shape[1] + extra.shape[1], np.uint64, endpoint=False)
    hashes = np.empty(len(index), np.uint64)
    for start in range(0, len(index), CHUNK):
        own = index[start : start + CHUNK]
        numbers = np.concatenate([X[own].astype(np.float64), extra[own]], axis=1)
        numbers += 0.0  # turns -0.0, whose bits differ, into 0.0
        hashes[start : start + CHUNK] = _mixed(numbers.view(np.uint64) + shifts).sum(axis=1, dtype=np.uint64)
    return hashes


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class Shares(NamedTuple):
    """The shares of a task's rows that go to each part."""

    validation: float
    selection: float
    smallest: int  # smaller tasks are not split: all their rows are training rows


def parts_given(owner: str, parts: Any, count: int) -> np.ndarray:
    """Turns the user's labels of parts into numbers; without labels, all are UNKNOWN."""
    if parts is None:
        return np.full(count, UNKNOWN)
    labels = np.asarray(parts)
    if labels.shape != (count,):
        raise ValueError(f"{owner}(part=...) has shape {labels.shape}: it needs one label for each of {count} rows.")
    unknown = sorted({str(label) for label in np.unique(labels)} - set(PARTS))
    if unknown:
        raise ValueError(f"{owner}(part=...) has {unknown[0]!r}: it needs {', '.join(map(repr, PARTS))}.")
    return np.array([PARTS.index(str(label)) for label in labels])


def parted(
    owner: str, rows: WeightedRows, able: np.ndarray, shares: Shares, stratify: bool, seed: int
) -> tuple[WeightedRows, np.ndarray]:
    """Splits the rows of every task that has enough of them, unless the user has given their parts.

    `able` says which tasks can be validated at all. Returns also which tasks help to learn what is shared.
    """
    if np.all(rows.part != UNKNOWN):
        counts = np.array([np.bincount(rows.task[rows.part == p], minlength=len(able)) for p in range(len(PARTS))])
        learns = able & np.all(counts > 0, axis=0)
    else:
        counts = np.bincount(rows.task, minlength=len(able))
        learns = able & (counts >= shares.smallest)
        learns = learns if learns.any() else able & (counts >= FEWEST)
        rows = rows._replace(part=_split(rows, learns, shares, stratify, seed))
    if not learns.any():
        warnings.warn(
            f"{owner}: no task has rows for training, validation and selection, so that what tasks share is left as "
            f"it starts; a task needs {FEWEST} different rows or more.",
            stacklevel=4,
        )
    return rows, learns


def _split(rows: WeightedRows, learns: np.ndarray, shares: Shares, stratify: bool, seed: int) -> np.ndarray:
    """The split of a task depends on its rows and the seed, not on its name."""
    part = np.zeros(len(rows.task), np.int64)
    for number in np.flatnonzero(learns):
        own = np.arange(*np.searchsorted(rows.task, [number, number + 1]))  # rows are ordered by task
        by = rows.target[own] if stratify else None
        (task,) = split(own, stratify=by, validation=shares.validation, selection=shares.selection, test=0, seed=seed)
        part[task.validation] = PARTS.index("validation")
        part[task.selection] = PARTS.index("selection")
    return part


def standard(X: np.ndarray, rows: WeightedRows) -> tuple[np.ndarray, np.ndarray]:
    """The mean and standard deviation of each column over training rows; 1 for a constant column."""
    trains = rows.part == PARTS.index("train")
    own = rows.take(trains) if trains.any() else rows
    total, columns = own.weight.sum(), X.shape[1]
    chunks = [slice(start, start + CHUNK) for start in range(0, len(own.place), CHUNK)]
    mean, square = np.zeros(columns), np.zeros(columns)
    for chunk in chunks:
        mean += own.weight[chunk] @ X[own.place[chunk]].astype(np.float64)
    mean /= total
    for chunk in chunks:
        square += own.weight[chunk] @ (X[own.place[chunk]] - mean) ** 2
    scale = np.sqrt(square / total)
    return mean, spread(scale, mean)


def spread(scale: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """A standard deviation, or 1 where it is only rounding error.

    >>> spread(np.array([2.0, 1e-17, 0.0]), np.array([5.0, 0.1, 0.0])).tolist()
    [2.0, 1.0, 1.0]
    """
    return np.where(scale > 10 * np.finfo(np.float64).eps * np.abs(mean), scale, 1)
