"""What was inferred from a table, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bilevel.tables.columns import Found
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
    return [*lines, *(f"  note        {note}" for note in own.notes), f"  {OTHERWISE}"]


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
