"""Columns as numbers for a model: what was learnt from training rows, applied to any rows, and kept as JSON.

scikit-learn's transformers do the same, and can only be kept as pickles, which run code when they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bilevel._core.documents import Fields, is_text
from bilevel.tables.arrow_values import Coded, Values, rows_of
from bilevel.tables.columns import Column

MOST = 20  # columns for the categories of one column, of which the last may stand for all rarer ones
MISSING = ""  # a category, where there is none: no text of a table is empty


@dataclasses.dataclass(frozen=True)
class Number:
    """(value - centre) / scale, 0 where it is missing; where training rows had gaps, a column that says where."""

    name: str
    kind: str  # "number" or "date"
    centre: float  # the median
    scale: float
    gaps: bool

    @classmethod
    def fitted(cls, column: Column, values: np.ndarray) -> Number:
        """From training rows."""
        present = values[~np.isnan(values)]
        centre = float(np.median(present)) if len(present) else 0.0
        scale = float(np.std(present)) if len(present) else 1.0
        usable = np.isfinite(scale) and scale > 1e-12 * max(abs(centre), 1e-300)
        return cls(column.name, column.kind, centre, scale if usable else 1.0, len(present) < len(values))

    @property
    def width(self) -> int:
        """Columns that it becomes."""
        return 1 + self.gaps

    def fill(self, out: np.ndarray, values: Values) -> None:
        """Writes them."""
        assert isinstance(values, np.ndarray)
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, 0, (values - self.centre) / self.scale)
        if self.gaps:
            out[:, 1] = missing


@dataclasses.dataclass(frozen=True)
class Category:
    """1 in the column of its label, or in the last one for a rarer label; nowhere for one that was not there."""

    name: str
    labels: tuple[str, ...]  # that have columns of their own
    rare: bool  # whether there is a column for others

    kind = "category"

    @classmethod
    def fitted(cls, column: Column, values: Coded) -> Category:
        """From training rows."""
        counts = np.bincount(values.codes + 1, minlength=len(values.labels) + 1)
        order = [number for number in np.argsort(-counts, kind="stable").tolist() if counts[number]]
        rare = len(order) > MOST
        own = order[: MOST - 1] if rare else order
        return cls(column.name, tuple(MISSING if k == 0 else values.labels[k - 1] for k in own), rare)

    @property
    def width(self) -> int:
        """Columns that it becomes."""
        return len(self.labels) + self.rare

    def fill(self, out: np.ndarray, values: Values) -> None:
        """Writes them."""
        assert isinstance(values, Coded)
        own = {label: place for place, label in enumerate(self.labels)}
        other = len(self.labels) if self.rare else -1
        place = np.array([own.get(label, other) for label in (MISSING, *values.labels)])[values.codes + 1]
        rows = np.flatnonzero(place >= 0)
        out[...] = 0
        out[rows, place[rows]] = 1


@dataclasses.dataclass(frozen=True)
class Encoder:
    """All columns."""

    parts: tuple[Number | Category, ...]

    @classmethod
    def fitted(cls, columns: Sequence[Column], values: Mapping[str, Values], rows: np.ndarray) -> Encoder:
        """From the training rows of a table."""
        parts: list[Number | Category] = []
        for column in columns:
            own = rows_of(values[column.name], rows)
            parts.append(Category.fitted(column, own) if isinstance(own, Coded) else Number.fitted(column, own))
        return cls(tuple(parts))

    @property
    def width(self) -> int:
        """Columns of `matrix`."""
        return sum(part.width for part in self.parts)

    def matrix(self, values: Mapping[str, Values], rows: np.ndarray) -> np.ndarray:
        """Rows of a table as numbers in single precision."""
        out, place = np.empty((len(rows), self.width), np.float32), 0
        for part in self.parts:
            part.fill(out[:, place : place + part.width], rows_of(values[part.name], rows))
            place += part.width
        return out

    def describe(self) -> list[dict[str, Any]]:
        """As JSON."""
        return [{"kind": part.kind, **dataclasses.asdict(part)} for part in self.parts]

    @classmethod
    def restored(cls, given: Sequence[Any], where: str) -> Encoder:
        """From JSON that is not trusted."""
        parts: list[Number | Category] = []
        for document in given:
            fields = Fields(document, f"{where}: a column")
            kind = fields.take("kind", lambda own: own in ("number", "date", "category"), "number, date or category")
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
