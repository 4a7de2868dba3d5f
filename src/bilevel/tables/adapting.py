"""Heads for tasks that were not there, from some rows of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevel.tables import folder, outcomes, reading, rivals
from bilevel.tables.arrow_values import Coded
from bilevel.tables.errors import InputError
from bilevel.tables.folder import MODEL, Kept
from bilevel.tables.outcomes import CLASSIFICATION
from bilevel.tables.predicting import values_of
from bilevel.tables.reading import Table

FEWEST = 20  # rows of a new task from which on it is judged before it is fitted to all of them
JUDGED = 4  # one row of so many is judged


class Adapted(NamedTuple):
    """A task that was fitted."""

    task: str
    rows: int
    judged: int  # rows that it was judged on, before it was fitted to all; 0 = too few
    loss: float | None
    alone: float | None  # the loss of a model of its own, fitted to the same rows


def adapt(
    path: Path, file: Path, out: Path | None, replace: bool, separator: str | None = None, encoding: str = "utf-8"
) -> tuple[list[Adapted], list[str]]:
    """Fits heads of the tasks of a file, with what is shared as it is.

    The model file is replaced at once, or, with `out`, a copy of the folder has the new one.

    Args:
        path: the folder.
        file: rows with the target.
        out: a folder for the copy; None = the folder itself is changed.
        replace: whether tasks that are there may be fitted anew, to these rows alone.
        separator: of a CSV.
        encoding: of a CSV.
    """
    kept = folder.read(path)
    if out is not None:
        folder.check_target(out, replace=False)
    model = folder.model_of(kept)
    table = reading.read(file, separator, encoding)
    rows, target, tasks, notes = _rows(kept, table)
    known = {str(label) for label in model.tasks_}
    there = [label for label in tasks.labels if label in known]
    if there and not replace:
        raise InputError(
            f"{str(file)!r}: task {there[0]!r} is in the model already: --replace fits it anew, to these rows alone."
        )
    X = kept.encoder.matrix(values_of(table, kept.encoder), rows)
    found = [_judged(kept, X, target, tasks.codes == k, label) for k, label in enumerate(tasks.labels)]
    model.adapt(X, target, tasks.texts())
    if out is None:
        model.save(path / MODEL)
    else:
        with folder.whole(out) as new:
            shutil.copytree(path, new, dirs_exist_ok=True)
            model.save(new / MODEL)
    return found, notes


def said(task: Adapted) -> str:
    """A sentence."""
    begin = f"{task.task}: {task.rows:,} rows"
    if not task.judged:
        return f"{begin}, too few, or of too few classes, to say how good it is."
    return (
        f"{begin}; on {task.judged} of them that a first head was not fitted to, a loss of {task.loss:.3f}, and of a "
        f"model of its own {task.alone:.3f}."
    )


def _rows(kept: Kept, table: Table) -> tuple[np.ndarray, np.ndarray, Coded, list[str]]:
    """Those that have a target and a task."""
    tasks = outcomes.tasks_of(table, kept.task)
    table.column(kept.target, "the target that the model was fitted to")
    own = outcomes.targets_of(table, kept.target, kept.kind)
    missing = own.codes < 0 if isinstance(own, Coded) else np.isnan(own)
    rows = np.flatnonzero(~missing & (tasks.codes >= 0))
    if not len(rows):
        raise InputError(f"{str(table.path)!r}: no row has both a target ({kept.target}) and a task ({kept.task}).")
    left = table.rows - len(rows)
    notes = [f"{left:,} rows without a target or a task are left out."] if left else []
    numbers, codes = np.unique(tasks.codes[rows], return_inverse=True)
    present = Coded(codes.astype(np.int32), [tasks.labels[k] for k in numbers])
    return rows, own.take(rows).texts() if isinstance(own, Coded) else own[rows], present, notes


def _judged(kept: Kept, X: np.ndarray, target: np.ndarray, own: np.ndarray, label: str) -> Adapted:
    """How a head does on one of four rows that it was not fitted to, beside a model of its own."""
    X, target = X[own], target[own]
    order = np.random.default_rng(0).permutation(len(target))
    order = order[np.argsort(target[order], kind="stable")]
    held = np.zeros(len(target), bool)
    held[order[1::JUDGED]] = True
    classes = np.unique(target[~held]) if kept.kind == CLASSIFICATION else np.empty(0)
    if len(target) < FEWEST or (
        kept.kind == CLASSIFICATION and (len(classes) < 2 or not np.isin(target[held], classes).all())
    ):
        return Adapted(label, len(target), 0, None, None)
    model = folder.model_of(kept).adapt(X[~held], target[~held], label)
    texts = np.full(int(held.sum()), label)
    if kept.kind == CLASSIFICATION:
        outputs = model.predict_proba(X[held], task=texts)[:, np.searchsorted(model.classes_, classes)]
        numbers, count = np.searchsorted(classes, target), len(classes)
    else:
        centre, scale = target[~held].mean(), target[~held].std() or 1.0
        outputs, numbers, count = (model.predict(X[held], task=texts) - centre) / scale, (target - centre) / scale, 0
    parts = [
        rivals.Rows(X[chosen], numbers[chosen], np.zeros(int(chosen.sum()), int), count) for chosen in (~held, held)
    ]
    ((_, alone),) = rivals.one_each(parts[0], parts[1], 1, 0)
    losses = [float(np.mean(rivals.losses(given, parts[1].target))) for given in (outputs, alone)]
    return Adapted(label, len(target), int(held.sum()), *losses)
