"""Which rows of a task train its head, validate what is shared, and select among what was reached."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from bilevel.datasets.splitting import split
from bilevel.estimators.rows import Rows

PARTS = ("train", "validation", "selection")
UNKNOWN = -1  # not yet in a part
FEWEST = 4  # rows that a task needs in any case to be split


class Shares(NamedTuple):
    """How a task's rows are split."""

    validation: float
    selection: float
    smallest: int  # tasks with fewer rows are not split: all their rows train


def given(owner: str, parts: Any, count: int) -> np.ndarray:
    """The number of the part of each row, from the user's labels; None = unknown."""
    if parts is None:
        return np.full(count, UNKNOWN)
    labels = np.asarray(parts)
    if labels.shape != (count,):
        raise ValueError(f"{owner}(part=...) has shape {labels.shape}: it needs one label for each of {count} rows.")
    unknown = sorted({str(label) for label in np.unique(labels)} - set(PARTS))
    if unknown:
        raise ValueError(f"{owner}(part=...) has {unknown[0]!r}: it needs {', '.join(map(repr, PARTS))}.")
    return np.array([PARTS.index(str(label)) for label in labels])


class Parted(NamedTuple):
    """The rows with their parts, and which tasks take part in learning what is shared."""

    rows: Rows
    learns: np.ndarray


def parted(owner: str, rows: Rows, able: np.ndarray, shares: Shares, stratify: bool, seed: int) -> Parted:
    """Splits the rows of every task that can be split.

    Args:
        owner: whom warnings name.
        rows: all rows; where their parts are known they stay.
        able: which tasks can be validated at all.
        shares: how.
        stratify: whether targets are classes.
        seed: of the split.
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
    return Parted(rows, learns)


def _split(rows: Rows, learns: np.ndarray, shares: Shares, stratify: bool, seed: int) -> np.ndarray:
    """The part of each row. How a task is split depends on its own rows and the seed, not on its name."""
    part = np.zeros(len(rows.task), np.int64)
    for number in np.flatnonzero(learns):
        own = np.arange(*np.searchsorted(rows.task, [number, number + 1]))  # rows are in the order of their tasks
        (task,) = split(
            own,
            stratify=rows.target[own] if stratify else None,
            validation=shares.validation,
            selection=shares.selection,
            test=0,
            seed=seed,
        )
        part[task.validation] = PARTS.index("validation")
        part[task.selection] = PARTS.index("selection")
    return part
