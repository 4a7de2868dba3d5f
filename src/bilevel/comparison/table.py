"""The table of a comparison: as rows, as files, as text for a terminal, and the findings in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevel._studies.records import COLUMNS, REGRETS, ROWS, Record, write_table
from bilevel.comparison.candidates import Candidate, Rank, typical
from bilevel.comparison.tuning import AUTOMATIC
from bilevel.results.findings.finding import Finding

LOSSES = tuple(f"{what}_{rows}" for rows in ("validation", "selection", "test") for what in ("worst", "mean"))
TableRow = dict[str, str | float]


class Ranks(NamedTuple):
    """A solver's rank, its rank by test rows, and the rank of the first solver."""

    own: Rank | None
    test: Rank | None
    first: Rank | None


def row(candidate: Candidate, ranks: Ranks, target: float) -> TableRow:
    """One solver: means and standard deviations over its runs, and the mean calls and seconds of those at the target.

    Losses of diverged runs count as infinite: the median then replaces the mean, and there is no deviation.
    """
    own, nan = candidate.profile, float("nan")
    found: TableRow = {"solver": candidate.name, "rates": candidate.rates, "at_edge": ", ".join(candidate.edges)}
    found |= {"steps": candidate.steps, "ranked_by": candidate.ranked_by}
    for name, rank in {"rank": ranks.own, "test_rank": ranks.test}.items():
        place = (nan, nan, nan) if rank is None else rank
        found |= dict(zip((name, f"{name}_low", f"{name}_high"), place, strict=True))
    tied = ranks.own is not None and ranks.first is not None and ranks.own.ties(ranks.first)
    found["ties_with_first"] = float(tied)
    found |= _losses(candidate)
    steps = np.array([reached(record, target) for record in candidate.runs.values()])
    known = np.isfinite(steps)
    found["reached_target"] = float(known.mean())
    calls, seconds = own.calls_at(steps[known]), own.seconds * steps[known]
    found["calls_to_target"] = float(calls.mean()) if known.any() else nan
    found["seconds_to_target"] = float(seconds.mean()) if known.any() else nan
    found |= {
        "calls": float(own.calls_at(candidate.steps)),
        "calls_besides_steps": own.used.besides if own.used else nan,
    }
    found |= {"calls_per_step": own.calls, "seconds_per_step": own.seconds}
    found |= {"state_megabytes": own.bytes / 1e6, "runs": len(candidate.runs)}
    return found | {"diverged": float(candidate.diverged.mean())}


def regrets(candidate: Candidate, names: Sequence[str]) -> TableRow:
    """Final worst regrets, and the tasks that most often have the worst loss and regret, for each kind of rows."""
    found: TableRow = {}
    for rows in ROWS:
        found |= _ends(candidate, f"regret_{rows}", candidate.ends)
        for column in (f"worst_{rows}_task", f"regret_{rows}_task"):
            task = candidate.usual_task(column)
            found[column] = "" if task is None else names[task]
    return found


def _losses(candidate: Candidate) -> TableRow:
    """Final losses, and test losses where a run was best; NaN for rows that the problem does not have."""
    found: TableRow = {}
    ends = dict.fromkeys(LOSSES, candidate.ends) | {"worst_test_at_best": candidate.at_best}
    for name, of in ends.items():
        found |= _ends(candidate, name, of)
    return found


def _ends(candidate: Candidate, name: str, of: Callable[[str], np.ndarray]) -> TableRow:
    """The mean and the deviation over the runs."""
    column = name.removesuffix("_at_best")
    own = of(column) if candidate.has(column) else np.array([np.nan])
    several = len(own) > 1 and np.isfinite(own).all()
    deviation = float(own.std(ddof=1)) if several else float("nan")
    return {name: float(typical(own)), f"{name}_deviation": deviation}


def reached(record: Record, target: float) -> float:
    """The first evaluated step at which the worst validation loss is the target or lower; NaN if none is."""
    there = np.flatnonzero(record["worst_validation"] <= target)
    return float(record["step"][there[0]]) if len(there) else float("nan")


def write(rows: Sequence[TableRow], candidates: Sequence[Candidate], folder: Path) -> None:
    """comparison.csv, a row for every solver; runs.csv, a row for every evaluation."""
    write_table(folder / "comparison.csv", rows)
    evaluations: list[TableRow] = [
        {"solver": c.name, "rates": c.rates, "seed": seed, "calls": float(c.profile.calls_at(record["step"][i]))}
        | {"step_seconds": float(record["step"][i] * c.profile.seconds)}
        | {name: float(record[name][i]) for name in (*COLUMNS, *REGRETS) if name in record.columns}
        for c in candidates
        for seed, record in c.runs.items()
        for i in range(len(record["step"]))
    ]
    write_table(folder / "runs.csv", evaluations)


def table_findings(rows: Sequence[TableRow]) -> tuple[Finding, ...]:
    """Findings of a table: a tie for the first place, and tuned rates at the edge of the grid."""
    checks = (tie_for_first(rows), edge_of_grid(rows))
    return tuple(finding for finding in checks if finding is not None)


def tie_for_first(rows: Sequence[TableRow]) -> Finding | None:
    """Solvers that the seeds cannot tell from the first."""
    tied = [f"{row['solver']}{', automatic' * (row['rates'] == AUTOMATIC)}" for row in rows if row["ties_with_first"]]
    if len(tied) < 2:
        return None
    return Finding(
        "tie",
        f"Tie for the first place (the same place, or intervals that overlap): {'; '.join(tied)}. "
        "More seeds tell more.",
        {"solvers": len(tied)},
    )


def edge_of_grid(rows: Sequence[TableRow]) -> Finding | None:
    """Tuned rates at the edge of the grid: better ones may lie beyond."""
    own = sorted({f"{row['solver']}: {row['at_edge']}" for row in rows if row["at_edge"]})
    if not own:
        return None
    words = f"Rates that are the largest or smallest that were tried: {'; '.join(own)}."
    still = [row for row in rows if "smallest x" in str(row["at_edge"])]
    others = any(str(row["at_edge"]) != "smallest x" for row in rows if row["at_edge"])
    if still:
        words += " Where that is the smallest x, the less x moved the better: on these rows it learns nothing of use."
    if others:
        words += " Beyond them may be better ones: give a wider bl.Grid."
    return Finding(
        "edge of the grid",
        words,
        {row["solver"]: row["at_edge"] for row in rows if row["at_edge"]},  # type: ignore[misc]
    )


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
    cell: Callable[[TableRow], str]
    align: str = ">"

    def text(self, words: str) -> str:
        """Words, padded to the width of the column."""
        return f"{words:{self.align}{self.width}}"


def as_text(title: str, rows: Sequence[TableRow], skipped: Mapping[str, str], target: float) -> str:
    """The table for a terminal. Columns that no solver has are left out."""
    goal = f"{target:.3g}"
    lines = [f"{title}; the target is a worst validation loss of {goal}, reached by this share of the runs"]
    columns = [*_places_and_losses(rows), *_costs(goal)]
    lines.append("".join(column.text(column.title) for column in columns))
    lines += ["".join(column.text(column.cell(row)) for column in columns) for row in rows]
    return "\n".join([*lines, *_notes(rows), *(f"{name} cannot run here: {why}" for name, why in skipped.items())])


def _places_and_losses(rows: Sequence[TableRow]) -> list[Column]:
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


def _regrets(rows: Sequence[TableRow], by: str) -> list[Column]:
    """Worst regrets on the rows that rank solvers and on test rows, and the tasks with the worst loss and regret."""
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


def _notes(rows: Sequence[TableRow]) -> list[str]:
    """What the ranks go by, and the findings."""
    of_tasks = "Regrets are losses less what a task could reach; of tasks: with the worst loss, with the worst regret."
    said = [f"Ranked by {RANKED_BY[str(rows[0]['ranked_by'])]}.", *[of_tasks] * ("regret_test" in rows[0])]
    return [*said, *map(str, table_findings(rows))]


def _any(rows: Sequence[TableRow], name: str) -> bool:
    return any(not np.isnan(float(row[name])) for row in rows)


def _interval(row: TableRow, name: str) -> str:
    low, high = (float(row[f"{name}_{end}"]) for end in ("low", "high"))
    return "" if np.isnan(low) else f"{low:.0f}-{high:.0f}"


def _number(value: str | float, form: str) -> str:
    return "-" if np.isnan(float(value)) else "diverged" if np.isinf(float(value)) else format(value, form)


def _spread(mean: str | float, deviation: str | float) -> str:
    return _number(mean, ".4f") + ("" if np.isnan(float(deviation)) else f" ± {deviation:.4f}")
