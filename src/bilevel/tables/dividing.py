"""Rows that are held out from everything, before anything is fitted."""

from __future__ import annotations

import numpy as np

from bilevel.datasets.splitting import split
from bilevel.tables.errors import InputError
from bilevel.tables.outcomes import CLASSIFICATION, Outcomes


def held_out(outcomes: Outcomes, share: float, smallest: int, seed: int) -> np.ndarray:
    """Which rows are, of each task that has `smallest` rows or more; stratified by task and class.

    Of a class of a task at least one row is left to fit to, so that no model is asked for what it could not see.
    """
    counts = np.bincount(outcomes.tasks.codes)
    if counts.max() < smallest:
        raise InputError(
            f"the largest of {len(counts):,} tasks has {counts.max():,} rows: with fewer than {smallest} a task is not "
            "scored, so that there is nothing to judge by; --smallest lowers that, or --task is another column."
        )
    classes = np.unique(outcomes.target, return_inverse=True)[1] if outcomes.kind == CLASSIFICATION else None
    parts = split(
        np.arange(len(outcomes.rows)),
        task=outcomes.tasks.texts(),
        stratify=classes,
        validation=share,
        selection=0,
        test=0,
        smallest=smallest,
        seed=seed,
    )
    held = np.zeros(len(outcomes.rows), bool)
    held[np.concatenate([np.asarray(part.validation) for part in parts])] = True
    if classes is not None:
        pair = outcomes.tasks.codes.astype(np.int64) * (classes.max() + 1) + classes
        held &= np.isin(pair, pair[~held])
    return held
