"""What the columns of a table are: inferred from all of their values, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevel.tables import arrow_values
from bilevel.tables.arrow_values import Coded, Values
from bilevel.tables.errors import InputError
from bilevel.tables.reading import Table

KINDS = ("number", "category", "date")
FEW = 20  # different texts up to which they are categories in any case
OTHERS = 0.1  # of the different values of a column that is otherwise of numbers
IDENTIFIER = 0.5  # different texts a row, above which they name the row


class Column(NamedTuple):
    """What a column is, and what it holds."""

    name: str
    kind: str  # one of KINDS
    missing: int  # rows
    labels: int  # different texts of a category


class Found(NamedTuple):
    """The columns that a model is made from, with their values, and why others are not among them."""

    columns: list[Column]
    values: dict[str, Values]
    left_out: dict[str, str]  # why


def found(table: Table, exclude: Mapping[str, str], kinds: Mapping[str, str]) -> Found:
    """The columns of a table.

    Args:
        table: all of it.
        exclude: columns that are left out, and why.
        kinds: what some columns are, by their names, whatever they look like.
    """
    columns, values, left_out = [], {}, dict(exclude)
    for name, column in table.columns.items():
        if name in exclude:
            continue
        kind, own = (kinds[name], converted(table, name, kinds[name])) if name in kinds else _inferred(column)
        if own is None:
            left_out[name] = kind
            continue
        missing, labels = (own.codes < 0, len(own.labels)) if isinstance(own, Coded) else (np.isnan(own), 0)
        columns.append(Column(name, kind, int(missing.sum()), labels))
        values[name] = own
    if not columns:
        why = "; ".join(f"{name}: {reason}" for name, reason in list(left_out.items())[:10])
        raise InputError(f"{str(table.path)!r} has no column that a model can be made from ({why}).")
    return Found(columns, values, left_out)


def _inferred(column: Any) -> tuple[str, Values | None]:
    """The kind of a column and its values; or why it is left out, and None."""
    if column.null_count == len(column):
        return "no value at all", None
    if not arrow_values.is_usable(column):
        return f"of type {column.type}", None
    for kind, convert in (("number", arrow_values.numbers), ("date", arrow_values.days)):
        own = convert(column)
        if own is not None:
            why = _useless(own)
            return (why, None) if why else (kind, own)
    texts = arrow_values.coded(column)
    known, rows = len(texts.labels), int((texts.codes >= 0).sum())
    if not known:
        return "no value at all", None
    if known == 1 and rows == len(texts.codes):
        return f"always {texts.labels[0]!r:.40}", None
    if known > max(FEW, IDENTIFIER * rows):
        others = others_than_numbers(texts)
        but = f", all numbers but {others[0]!r:.40}" if others else ""
        return f"{known:,} different texts in {rows:,} rows{but}", None
    return "category", texts


def others_than_numbers(texts: Coded) -> list[str]:
    """What keeps a column from being one of numbers, where that is little; one cell may cost the column."""
    others = [label for label in map(str, texts.labels) if not _is_number(label)]
    return others if len(others) <= OTHERS * len(texts.labels) else []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _useless(own: np.ndarray) -> str:
    """Why a column of numbers says nothing; empty where it may say something."""
    present = own[~np.isnan(own)]
    if not len(present):
        return "no value at all"
    if len(present) == len(own) and np.all(present == present[0]):
        return f"always {present[0]:g}"
    if len(present) == len(own) > 2 and np.all(np.diff(present) == 1):
        return "counts the rows"
    return ""


def converted(table: Table, name: str, kind: str) -> Values:
    """The values of a column that has to be of a kind."""
    column = table.column(name, f"a {kind}")
    if not arrow_values.is_usable(column):
        raise InputError(f"{str(table.path)!r}: column {name!r} is of type {column.type}: it needs one value a row.")
    if kind == "category":
        return arrow_values.coded(column)
    if column.null_count == len(column):
        return np.full(len(column), np.nan)
    own = (arrow_values.numbers if kind == "number" else arrow_values.days)(column)
    if own is None:
        needs = "a number" if kind == "number" else "a date such as 2024-01-31"
        wrong = f"{_first_wrong(column, kind)!r:.60}"
        raise InputError(f"{str(table.path)!r}: column {name!r} has {wrong}: it needs {needs} in each row.")
    return own


def _first_wrong(column: Any, kind: str) -> str:
    """The first value that is not of a kind, found by halving."""
    convert = arrow_values.numbers if kind == "number" else arrow_values.days
    while len(column) > 1:
        half = len(column) // 2
        first = column.slice(0, half)
        column = first if convert(first) is None else column.slice(half)
    return str(column[0].as_py())
