"""The target and the tasks of a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bilevel.tables import arrow_values, columns
from bilevel.tables.arrow_values import Coded
from bilevel.tables.errors import InputError
from bilevel.tables.reading import Table

FEW = 10  # whole numbers up to which they are classes
MOST = 200  # classes
CLASSIFICATION, REGRESSION = "classification", "regression"


class Outcomes(NamedTuple):
    """Of the rows that have both."""

    kind: str
    target: np.ndarray  # texts for classes, numbers otherwise
    tasks: Coded
    rows: np.ndarray  # their numbers in the file
    notes: list[str]


def outcomes(table: Table, target: str, task: str, kind: str | None) -> Outcomes:
    """Reads both columns; rows without one of them are left out, which is noted.

    Args:
        table: all of it.
        target: the name of the column to predict.
        task: the name of the column that says which task a row is of.
        kind: "classification", "regression" or None, for what it looks like.
    """
    column, tasks = table.column(target, "the target"), tasks_of(table, task)
    if target == task:
        raise InputError(f"--target and --task are both {target!r}: they need to be different columns.")
    if column.null_count == table.rows:
        raise InputError(f"{str(table.path)!r}: the target {target!r} has no value in any row.")
    kind = kind or _kind(column)
    own = targets_of(table, target, kind)
    missing = own.codes < 0 if isinstance(own, Coded) else np.isnan(own)
    present = np.flatnonzero(~missing & (tasks.codes >= 0))
    notes = []
    for what, name, without in (("target", target, missing), ("task", task, tasks.codes < 0)):
        if without.any():
            notes.append(f"{int(without.sum()):,} rows without a {what} ({name}) are left out.")
    if not len(present):
        raise InputError(f"{str(table.path)!r}: no row has both a target ({target}) and a task ({task}).")
    values = own.take(present).texts() if isinstance(own, Coded) else own[present]
    _check(table, target, kind, values)
    return Outcomes(kind, values, _present(table, task, tasks.take(present)), present, notes)


def tasks_of(table: Table, task: str) -> Coded:
    """The task of each row, -1 where it is missing."""
    own = columns.converted(table._replace(columns={task: table.column(task, "the task")}), task, "category")
    assert isinstance(own, Coded)
    return own


def targets_of(table: Table, target: str, kind: str) -> np.ndarray | Coded:
    """The target of each row."""
    own = columns.converted(table, target, "category" if kind == CLASSIFICATION else "number")
    if isinstance(own, Coded) and len(own.labels) > MOST:
        raise InputError(
            f"{str(table.path)!r}: the target {target!r} has {len(own.labels):,} different values, and classes may be "
            f"{MOST} at most: is it a number with something else in it, or the name of the row?"
        )
    return own


def _kind(column: Any) -> str:
    """Texts, truth values and a few whole numbers are classes."""
    own = arrow_values.numbers(column)
    if own is None:
        return CLASSIFICATION
    different = np.unique(own[~np.isnan(own)])
    few = len(different) <= FEW and np.all(different == np.floor(different))
    return CLASSIFICATION if few else REGRESSION


def _check(table: Table, target: str, kind: str, values: np.ndarray) -> None:
    first = values[0]
    if np.all(values == first):
        needs = "two classes" if kind == CLASSIFICATION else "numbers that differ"
        raise InputError(
            f"{str(table.path)!r}: the target {target!r} is {str(first)!r:.60} in all rows: it needs {needs}."
        )


def _present(table: Table, task: str, tasks: Coded) -> Coded:
    """With the labels that rows have."""
    numbers, codes = np.unique(tasks.codes, return_inverse=True)
    if len(numbers) < 2:
        raise InputError(
            f"{str(table.path)!r}: the task {task!r} is {tasks.labels[numbers[0]]!r:.60} in all rows: it needs two "
            "tasks or more; without tasks, any model of scikit-learn will do."
        )
    return Coded(codes.astype(np.int32), [tasks.labels[number] for number in numbers])
