"""What was inferred from a table, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bilevel.tables.arrow_values import Coded
from bilevel.tables.columns import Found, others_than_numbers
from bilevel.tables.outcomes import CLASSIFICATION, Outcomes
from bilevel.tables.reading import Table
from bilevel.tables.settings import Settings

SHOWN = 6  # names or classes
WORDS = {"number": "numbers", "category": "categories", "date": "dates"}
OTHERWISE = "Where that is wrong: --kind, --number, --category, --date, --exclude."


def table(table: Table, settings: Settings, own: Outcomes, found: Found) -> list[str]:
    """Lines for the user."""
    separated = {None: "", ",": "", "\t": ", separated by tabs"}.get(
        table.separator, f", separated by {table.separator!r}"
    )
    sizes = np.bincount(own.tasks.codes)
    lines = [
        f"{table.path}: {table.rows:,} rows, {len(table.columns)} columns{separated}",
        f"  target      {settings.target}: {_target(own)}",
        f"  task        {settings.task}: {len(sizes):,} tasks of {sizes.min():,} to {sizes.max():,} rows"
        + _small(sizes, settings.smallest),
    ]
    for kind, word in WORDS.items():
        named = [column for column in found.columns if column.kind == kind]
        if named:
            gaps = sum(column.missing > 0 for column in named)
            missing = f"; values are missing in {gaps} of them" if gaps else ""
            shown = [f"{c.name} ({c.labels})" if kind == "category" else c.name for c in named]
            lines.append(f"  {word:<11} {len(named)}: {_some(shown)}{missing}")
    reasons = [
        f"{name} ({why})" for name, why in found.left_out.items() if name not in (settings.target, settings.task)
    ]
    if reasons:
        lines.append(f"  left out    {len(reasons)}: {_some(reasons)}")
    notes = [*own.notes, *nearly_numbers(found, settings.kinds), *nearly_alike(own)]
    return [*lines, *(f"  note        {note}" for note in notes), f"  {OTHERWISE}"]


def nearly_numbers(found: Found, given: Mapping[str, str]) -> Iterator[str]:
    """Categories that a few values keep from being numbers: one cell may cost the column."""
    for column in found.columns:
        texts = found.values[column.name]
        if not isinstance(texts, Coded) or column.name in given:
            continue
        others = others_than_numbers(texts)
        if others:
            where = int(np.flatnonzero(texts.codes == [str(label) for label in texts.labels].index(others[0]))[0]) + 1
            yield (
                f"{column.name}: of its {column.labels:,} different values all are numbers but "
                f"{_some([repr(other) for other in others])} (first in row {where:,}): taken as a category"
            )


def nearly_alike(own: Outcomes) -> Iterator[str]:
    """Classes that differ in case or in spaces around them only."""
    if own.kind != CLASSIFICATION:
        return
    alike: dict[str, list[str]] = {}
    for label in np.unique(own.target).tolist():
        alike.setdefault(str(label).strip().casefold(), []).append(str(label))
    for labels in alike.values():
        if len(labels) > 1:
            named = _some([repr(label) for label in labels])
            yield f"the classes {named} differ in case or spaces only, and are kept apart"


def _target(own: Outcomes) -> str:
    if own.kind != CLASSIFICATION:
        low, middle, high = np.quantile(own.target, [0, 0.5, 1])
        return f"a number, {low:.4g} to {high:.4g}, median {middle:.4g} (regression)"
    labels, counts = np.unique(own.target, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shares = [f"{labels[k]} {counts[k] / counts.sum():.0%}" for k in order]
    return f"{len(labels)} classes, {_some(shares)} (classification)"


def _small(sizes: np.ndarray, smallest: int) -> str:
    small = int(np.sum(sizes < smallest))
    return f"; {small:,} with fewer than {smallest} rows are fitted and not scored" if small else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f", and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
