"""The table of a comparison for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bilevel.comparison import findings
from bilevel.comparison.table import Row

WORST = {"worst_selection": "worst sel.", "worst_test": "worst test", "worst_validation": "worst val."}
RANKED_BY = {
    "worst_selection": "the worst selection loss, of rows that x never saw; rates were tuned by it",
    "worst_test": "the worst test loss; rates were tuned by the worst validation loss",
    "worst_validation": "the worst validation loss, by which rates were tuned too: there are no other rows",
}


class Column(NamedTuple):
    """A column of text."""

    title: str
    width: int
    cell: Callable[[Row], str]
    align: str = ">"

    def text(self, words: str) -> str:
        """Words in its width."""
        return f"{words:{self.align}{self.width}}"


def text(title: str, rows: Sequence[Row], skipped: Mapping[str, str], target: float) -> str:
    """The whole of it; columns that no solver has are left out."""
    goal = f"{target:.3g}"
    lines = [f"{title}; the target is a worst validation loss of {goal}, reached by this share of the runs"]
    columns = [*_places_and_losses(rows), *_costs(goal)]
    lines.append("".join(column.text(column.title) for column in columns))
    lines += ["".join(column.text(column.cell(row)) for column in columns) for row in rows]
    return "\n".join([*lines, *_notes(rows), *(f"{name} cannot run here: {why}" for name, why in skipped.items())])


def _places_and_losses(rows: Sequence[Row]) -> list[Column]:
    by = rows[0]["ranked_by"]
    found = [
        Column("rank", 4, lambda row: _number(row["rank"], ".0f")),
        Column("95 %", 8, lambda row: _interval(row, "rank") or "-"),
        Column("  solver", 17, lambda row: f"  {row['solver']}", "<"),
        Column("rates x, y, weights", 21, lambda row: str(row["rates"]), "<"),
    ]
    found += [
        Column(words, 17, lambda row, name=name: _spread(row[name], row[f"{name}_deviation"]))
        for name, words in WORST.items()
        if _any(rows, name)
    ]
    if by != "worst_test" and _any(rows, "test_rank"):
        test_rank = lambda row: f"{_number(row['test_rank'], '.0f')} {_interval(row, 'test_rank')}".rstrip()  # noqa: E731
        found.insert(-1, Column("rank by it", 12, test_rank))
    if by == "worst_selection" and _any(rows, "worst_test"):
        found.insert(-1, Column("test at best", 14, lambda row: _number(row["worst_test_at_best"], ".4f")))
    found += _regrets(rows, str(by))
    return [*found, Column("mean val.", 11, lambda row: _number(row["mean_validation"], ".4f"))]


def _regrets(rows: Sequence[Row], by: str) -> list[Column]:
    """Worst regrets on the rows that solvers are ranked by and on test rows, and whose loss and regret they are."""
    found = []
    for kind in dict.fromkeys((by.removeprefix("worst_"), "test")):
        name = f"regret_{kind}"
        if name not in rows[0] or not _any(rows, name):
            continue
        words = WORST[f"worst_{kind}"].replace("worst", "regret")
        found.append(Column(words, 19, lambda row, name=name: _spread(row[name], row[f"{name}_deviation"])))
        tasks = lambda row, kind=kind: f"  {row[f'worst_{kind}_task']}, {row[f'regret_{kind}_task']}"  # noqa: E731
        width = max(len(tasks(row)) for row in rows)
        found.append(Column("  of tasks", max(12, width), tasks, "<"))
    return found


def _costs(goal: str) -> list[Column]:
    return [
        Column("steps", 8, lambda row: f"{row['steps']:,}"),
        Column("calls", 10, lambda row: _number(row["calls"], ",.0f")),
        Column(f"calls to {goal}", 18, lambda row: _number(row["calls_to_target"], ",.0f")),
        Column(f"seconds to {goal}", 20, lambda row: _number(row["seconds_to_target"], ".3g")),
        Column("by", 6, lambda row: f"{row['reached_target']:.0%}"),
        Column("state MB", 11, lambda row: f"{row['state_megabytes']:.3g}"),
        Column("diverged", 10, lambda row: f"{row['diverged']:.0%}"),
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What the ranks are by, and what was found."""
    of_tasks = "Regrets are losses less what a task could reach; of tasks: with the worst loss, with the worst regret."
    said = [f"Ranked by {RANKED_BY[str(rows[0]['ranked_by'])]}.", *[of_tasks] * ("regret_test" in rows[0])]
    return [*said, *map(str, findings.found(rows))]


def _any(rows: Sequence[Row], name: str) -> bool:
    return any(not np.isnan(float(row[name])) for row in rows)


def _interval(row: Row, name: str) -> str:
    low, high = (float(row[f"{name}_{end}"]) for end in ("low", "high"))
    return "" if np.isnan(low) else f"{low:.0f}-{high:.0f}"


def _number(value: str | float, form: str) -> str:
    return "-" if np.isnan(float(value)) else "diverged" if np.isinf(float(value)) else format(value, form)


def _spread(mean: str | float, deviation: str | float) -> str:
    return _number(mean, ".4f") + ("" if np.isnan(float(deviation)) else f" ± {deviation:.4f}")
