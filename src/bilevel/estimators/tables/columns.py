"""The columns of a table: their kinds, the target and the tasks, and the encoding of inputs as numbers.

Kinds are inferred from all values of a column, unless the user names them. The encoder is fitted to training rows,
works on any rows, and is saved as JSON. scikit-learn's transformers do the same, but can only be saved as pickles,
which run code when they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevel._core.documents import Fields, is_text
from bilevel.estimators.tables import reading
from bilevel.estimators.tables.reading import Coded, InputError, Table, Values, is_missing, rows_of

KINDS = ("number", "category", "date")
CONVERT = {"number": reading.numbers, "date": reading.days}
CLASSIFICATION, REGRESSION = "classification", "regression"
FEW_TEXTS = 20  # up to this many different texts are categories in any case
OTHERS = 0.1  # a column is nearly one of numbers if at most this share of its different values are none
IDENTIFIER = 0.5  # with more different texts for each row, a column identifies rows
FEW_NUMBERS = 10  # up to this many different whole numbers are classes
MOST_CLASSES = 200
MOST_COLUMNS = 20  # for the categories of one column; the last may stand for all rarer categories
NO_TEXT = ""  # the category of a missing value; no text of a table is empty


# ------------------------------------------------------------------ kinds


class TableColumn(NamedTuple):
    """The kind of a column, and how many missing values and labels it has."""

    name: str
    kind: str  # one of KINDS
    missing: int  # rows
    labels: int  # different texts of a category


class TableColumns(NamedTuple):
    """The columns that are inputs of a model, with their values, and the others."""

    columns: list[TableColumn]
    values: dict[str, Values]
    left_out: dict[str, str]  # and the reason


def infer_columns(table: Table, exclude: Mapping[str, str], kinds: Mapping[str, str]) -> TableColumns:
    """Finds the inputs among the columns of a table; `exclude` has reasons, and `kinds` says what is not inferred."""
    columns, values, left_out = [], {}, dict(exclude)
    for name, column in table.columns.items():
        if name in exclude:
            continue
        kind, own = (kinds[name], converted(table, name, kinds[name])) if name in kinds else _inferred(column)
        if own is None:
            left_out[name] = kind
            continue
        labels = len(own.labels) if isinstance(own, Coded) else 0
        columns.append(TableColumn(name, kind, int(is_missing(own).sum()), labels))
        values[name] = own
    if not columns:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:10])
        raise InputError(f"{str(table.path)!r} has no column that a model can be made from ({why}).")
    return TableColumns(columns, values, left_out)


def _inferred(column: Any) -> tuple[str, Values | None]:
    """The kind of a column and its values; or the reason to leave it out, and None."""
    if column.null_count == len(column):
        return "no value at all", None
    if not reading.is_usable(column):
        return f"of type {column.type}", None
    for kind, convert in CONVERT.items():
        own = convert(column)
        if own is not None:
            why = _useless(own)
            return (why, None) if why else (kind, own)
    texts = reading.coded(column)
    known, rows = len(texts.labels), int((texts.codes >= 0).sum())
    if not known:
        return "no value at all", None
    if known == 1 and rows == len(texts.codes):
        return f"always {texts.labels[0]!r:.40}", None
    if known > max(FEW_TEXTS, IDENTIFIER * rows):
        others = others_than_numbers(texts)
        but = f", all numbers but {others[0]!r:.40}" if others else ""
        return f"{known:,} different texts in {rows:,} rows{but}", None
    return "category", texts


def others_than_numbers(texts: Coded) -> list[str]:
    """The texts of a column that are not numbers, if they are few: one wrong cell may cost the column."""
    others = []
    for label in map(str, texts.labels):
        try:
            float(label)
        except ValueError:
            others.append(label)
    return others if len(others) <= OTHERS * len(texts.labels) else []


def _useless(own: np.ndarray) -> str:
    """Why a column of numbers carries no information; empty if it may carry some."""
    present = own[~np.isnan(own)]
    if not len(present):
        return "no value at all"
    if len(present) == len(own) and np.all(present == present[0]):
        return f"always {present[0]:g}"
    if len(present) == len(own) > 2 and np.all(np.diff(present) == 1):
        return "counts the rows"
    return ""


def converted(table: Table, name: str, kind: str) -> Values:
    """The values of a column as this kind; an `InputError` if they are not."""
    column = table.column(name, f"a {kind}")
    if not reading.is_usable(column):
        raise InputError(f"{str(table.path)!r}: column {name!r} is of type {column.type}: it needs one value a row.")
    if kind == "category":
        return reading.coded(column)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    own = CONVERT[kind](column)
    if own is None:
        needs = "a number" if kind == "number" else "a date such as 2024-01-31"
        wrong = f"{_first_wrong(column, kind)!r:.60}"
        raise InputError(f"{str(table.path)!r}: column {name!r} has {wrong}: it needs {needs} in each row.")
    return own


def _first_wrong(column: Any, kind: str) -> str:
    """The first value that is not of this kind, found by bisection."""
    while len(column) > 1:
        half = len(column) // 2
        first = column.slice(0, half)
        column = first if CONVERT[kind](first) is None else column.slice(half)
    return str(column[0].as_py())


# ------------------------------------------------------------------ target and tasks


class Outcomes(NamedTuple):
    """The targets and tasks of the rows that have both."""

    kind: str
    target: np.ndarray  # texts for classes, numbers otherwise
    tasks: Coded
    rows: np.ndarray  # their numbers in the file
    notes: list[str]


def read_outcomes(table: Table, target: str, task: str, kind: str | None) -> Outcomes:
    """Reads both columns. Rows without one of them are left out, with a note. The kind is inferred if it is None."""
    column, tasks = table.column(target, "the target"), tasks_of(table, task)
    if target == task:
        raise InputError(f"--target and --task are both {target!r}: they need to be different columns.")
    if column.null_count == table.rows:
        raise InputError(f"{str(table.path)!r}: the target {target!r} has no value in any row.")
    kind = kind or _kind_of_target(column)
    own = targets_of(table, target, kind)
    notes = [
        f"{int(is_missing(values).sum()):,} rows without a {what} ({name}) are left out."
        for what, name, values in (("target", target, own), ("task", task, tasks))
        if is_missing(values).any()
    ]
    rows, values = rows_with_both(table, (target, own), (task, tasks))
    if np.all(values == values[0]):
        needs = "two classes" if kind == CLASSIFICATION else "numbers that differ"
        same = f"{str(values[0])!r:.60}"
        raise InputError(f"{str(table.path)!r}: the target {target!r} is {same} in all rows: it needs {needs}.")
    present = tasks.take(rows).compact()
    if len(present.labels) < 2:
        raise InputError(
            f"{str(table.path)!r}: the task {task!r} is {present.labels[0]!r:.60} in all rows: it needs two "
            "tasks or more; without tasks, any model of scikit-learn will do."
        )
    return Outcomes(kind, values, present, rows, notes)


def rows_with_both(table: Table, target: tuple[str, Values], task: tuple[str, Coded]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows that have a target and a task, and their targets; each column with its name."""
    rows = np.flatnonzero(~is_missing(target[1]) & ~is_missing(task[1]))
    if not len(rows):
        raise InputError(f"{str(table.path)!r}: no row has both a target ({target[0]}) and a task ({task[0]}).")
    own = rows_of(target[1], rows)
    return rows, own.texts() if isinstance(own, Coded) else own


def tasks_of(table: Table, task: str) -> Coded:
    """The task of each row."""
    table.column(task, "the task")
    own = converted(table, task, "category")
    assert isinstance(own, Coded)
    return own


def targets_of(table: Table, target: str, kind: str) -> np.ndarray | Coded:
    """The target of each row."""
    own = converted(table, target, "category" if kind == CLASSIFICATION else "number")
    if isinstance(own, Coded) and len(own.labels) > MOST_CLASSES:
        raise InputError(
            f"{str(table.path)!r}: the target {target!r} has {len(own.labels):,} different values, and classes may be "
            f"{MOST_CLASSES} at most: is it a number with something else in it, or the name of the row?"
        )
    return own


def _kind_of_target(column: Any) -> str:
    """Infers the kind: texts, truth values and a few whole numbers are classes."""
    own = reading.numbers(column)
    if own is None:
        return CLASSIFICATION
    different = np.unique(own[~np.isnan(own)])
    few = len(different) <= FEW_NUMBERS and np.all(different == np.floor(different))
    return CLASSIFICATION if few else REGRESSION


# ------------------------------------------------------------------ encoding


@dataclasses.dataclass(frozen=True)
class Number:
    """(value - centre) / scale, 0 if it is missing; if training rows had gaps, another column marks missing values."""

    name: str
    kind: str  # "number" or "date"
    centre: float  # the median
    scale: float
    gaps: bool

    @classmethod
    def fitted(cls, column: TableColumn, values: np.ndarray) -> Number:
        """Fits it to training rows."""
        present = values[~np.isnan(values)]
        centre = float(np.median(present)) if len(present) else 0.0
        scale = float(np.std(present)) if len(present) else 1.0
        usable = np.isfinite(scale) and scale > 1e-12 * max(abs(centre), 1e-300)
        return cls(column.name, column.kind, centre, scale if usable else 1.0, len(present) < len(values))

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return 1 + self.gaps

    def fill(self, out: np.ndarray, values: Values) -> None:
        """Writes these columns."""
        assert isinstance(values, np.ndarray)
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, 0, (values - self.centre) / self.scale)
        if self.gaps:
            out[:, 1] = missing


@dataclasses.dataclass(frozen=True)
class Category:
    """1 in the column of the label, or in the last column for a rare label; all 0 for an unknown one without it."""

    name: str
    labels: tuple[str, ...]  # those with a column of their own
    rare: bool  # whether there is a column for the others

    kind = "category"

    @classmethod
    def fitted(cls, column: TableColumn, values: Coded) -> Category:
        """Fits it to training rows."""
        counts = np.bincount(values.codes + 1, minlength=len(values.labels) + 1)
        order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
        rare = len(order) > MOST_COLUMNS
        own = order[: MOST_COLUMNS - 1] if rare else order
        return cls(column.name, tuple(NO_TEXT if k == 0 else values.labels[k - 1] for k in own), rare)

    @property
    def width(self) -> int:
        """How many columns it becomes."""
        return len(self.labels) + self.rare

    def fill(self, out: np.ndarray, values: Values) -> None:
        """Writes these columns."""
        assert isinstance(values, Coded)
        own = {label: place for place, label in enumerate(self.labels)}
        other = len(self.labels) if self.rare else -1
        place = np.array([own.get(label, other) for label in (NO_TEXT, *values.labels)])[values.codes + 1]
        rows = np.flatnonzero(place >= 0)
        out[...] = 0
        out[rows, place[rows]] = 1


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Encodes all inputs."""

    parts: tuple[Number | Category, ...]

    @classmethod
    def fitted(cls, columns: Sequence[TableColumn], values: Mapping[str, Values], rows: np.ndarray) -> Encoder:
        """Fits it to the training rows of a table."""
        parts: list[Number | Category] = []
        for column in columns:
            own = rows_of(values[column.name], rows)
            parts.append(Category.fitted(column, own) if isinstance(own, Coded) else Number.fitted(column, own))
        return cls(tuple(parts))

    @property
    def width(self) -> int:
        """How many columns `matrix` has."""
        return sum(part.width for part in self.parts)

    def matrix(self, values: Mapping[str, Values], rows: np.ndarray) -> np.ndarray:
        """Rows of a table as numbers in single precision."""
        out, place = np.empty((len(rows), self.width), np.float32), 0
        for part in self.parts:
            part.fill(out[:, place : place + part.width], rows_of(values[part.name], rows))
            place += part.width
        return out

    def describe(self) -> list[dict[str, Any]]:
        """The encoder as JSON."""
        return [{"kind": part.kind, **dataclasses.asdict(part)} for part in self.parts]

    @classmethod
    def restored(cls, given: Sequence[Any], where: str) -> Encoder:
        """Restores an encoder from JSON that is not trusted."""
        parts: list[Number | Category] = []
        for document in given:
            fields = Fields(document, f"{where}: a column")
            kind = fields.take("kind", lambda own: own in KINDS, "number, date or category")
            truth = "rare" if kind == "category" else "gaps"
            flag = fields.take(truth, lambda own: isinstance(own, bool), "true or false")
            if kind == "category":
                parts.append(Category(fields.text("name"), tuple(fields.texts("labels")), flag))
                continue
            scale = fields.take("scale", lambda own: type(own) is float and 0 < own < np.inf, "a positive number")
            parts.append(Number(fields.text("name"), kind, fields.number("centre"), scale, flag))
        if not parts or not all(is_text(part.name) for part in parts):
            raise ValueError(f"{where}: it has no columns.")
        return cls(tuple(parts))
