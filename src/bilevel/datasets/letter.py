"""UCI Letter recognition: 20,000 letters, 16 numbers each, embedded in the package.

Source: David Slate, "Letter Recognition", UCI Machine Learning Repository, 1991, doi.org/10.24432/C5ZP40, under the
Creative Commons Attribution 4.0 International licence; stored here as bytes, otherwise unchanged. Described in: Frey
and Slate, "Letter recognition using Holland-style adaptive classifiers", Machine Learning 6, 1991.
"""

from __future__ import annotations

import itertools
from importlib import resources
from typing import NamedTuple

import numpy as np

from bilevel._core import values
from bilevel.problem.task import Task

CLASSES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FEWEST = 1468  # rows of the smallest pair


class Letter(NamedTuple):
    """All rows of the dataset."""

    features: np.ndarray  # (20000, 16), whole numbers from 0 to 15
    labels: np.ndarray  # (20000,), 0 = "A" ... 25 = "Z"


def letter() -> Letter:
    """The whole dataset.

    >>> letter().features.shape
    (20000, 16)
    """
    with resources.files("bilevel.datasets").joinpath("letter.npz").open("rb") as file:
        stored = np.load(file, allow_pickle=False)
        return Letter(stored["X"], stored["y"])


def letter_pairs(
    tasks: int = 16,
    seed: int = 0,
    pairs: list[str] | None = None,
    rows: int | None = None,
    selection: float = 0.0,
) -> list[Task]:
    """Binary tasks "tell one letter from another", each split 60 % training, 20 % validation, 20 % test.

    Args:
        tasks: how many of the 325 pairs, drawn without repetition.
        seed: of the pairs and of the splits.
        pairs: use these pairs instead, as in ["AB", "QO"].
        rows: keep this many rows of each pair, so that all tasks have the same size; None = all, 1,468 to 1,618.
        selection: the share of the training rows that is held out for selection; the other parts stay as they are.

    Rows are (features scaled to [-1, 1], label -1 or 1); a task's name is its pair.

    >>> [task.name for task in letter_pairs(pairs=["AB", "QO"])]
    ['AB', 'QO']
    """
    every = ["".join(pair) for pair in itertools.combinations(CLASSES, 2)]
    generator = np.random.default_rng(seed)
    if pairs is None:
        values.whole("tasks", tasks, most=len(every), of="letter_pairs")
        pairs = [every[i] for i in generator.choice(len(every), tasks, replace=False)]
    values.whole("rows", rows, least=10, most=FEWEST, of="letter_pairs", none="all rows of each pair")
    values.fraction("selection", selection, of="letter_pairs")
    for pair in pairs:
        if len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(CLASSES):
            raise ValueError(f"letter_pairs(pairs=...) got {pair!r}: a pair is two different letters from A to Z.")
    features, labels = letter()
    scaled = (features.astype(np.float32) - 7.5) / 7.5
    return [_task(pair, scaled, labels, generator, rows, selection) for pair in pairs]


def _task(
    pair: str,
    features: np.ndarray,
    labels: np.ndarray,
    generator: np.random.Generator,
    count: int | None,
    selection: float,
) -> Task:
    first, second = (CLASSES.index(c) for c in pair)
    rows = generator.permutation(np.flatnonzero((labels == first) | (labels == second)))[:count]
    signs = np.where(labels == first, -1, 1).astype(np.float32)
    train, validation, test = np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))])
    train, held_out = np.split(train, [len(train) - int(selection * len(train))])
    parts = [(features[part], signs[part]) for part in (train, validation, test)]
    return Task(*parts, name=pair, selection=(features[held_out], signs[held_out]) if len(held_out) else None)
