"""The solvers of a comparison: their runs, costs and ranks, and the table of all this.

An oracle call is one value, gradient or product of one task on one row of data, as papers count them: a full pass over
N rows is N calls. A value that comes with a gradient is free (see `bl.cost`). All calls of a run count: for first
values and tables, loops that grow, and automatic rates. Evaluations on all the data do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bilevel.diagnostics.costs import RunCost
from bilevel.results.findings.finding import Finding
from bilevel.studies import statistics
from bilevel.studies.records import COLUMNS, REGRETS, ROWS, Record, write_table

AUTOMATIC, AS_GIVEN = "automatic", "as given"  # rates, in tables
EVALUATIONS = 50  # of a run
RESAMPLES = 2000  # of the seeds
CONFIDENCE = 0.95
ROUNDING = 1e-6  # a loss is lower by more than this share of it


class Used(NamedTuple):
    """Oracle calls per task along a run, as a table of steps."""

    steps: np.ndarray  # 0, then those that are evaluated
    calls: np.ndarray  # up to each of them
    besides: float  # those outside of steps: for first values, tables and automatic rates

    @classmethod
    def of(cls, cost: RunCost) -> Used:
        """The calls at the steps at which a run of this length is evaluated."""
        steps = np.arange(0, cost.length + 1, max(1, cost.length // EVALUATIONS))
        steps = np.union1d(steps, [cost.length])
        return cls(steps, cost.rows[steps], cost.start.rows + cost.measuring.rows)


class Profile(NamedTuple):
    """Cost of a run."""

    calls: float  # per step and task, on average; NaN for problems that are not bilevel, where they are not counted
    seconds: float  # per step, alone on the machine
    bytes: int  # of the solver's state
    used: Used | None = None  # along the run; None = the average in every step

    def calls_at(self, steps: Any) -> Any:
        """Calls per task up to these steps."""
        return steps * self.calls if self.used is None else np.interp(steps, self.used.steps, self.used.calls)


class Candidate(NamedTuple):
    """A solver that ran."""

    name: str
    profile: Profile
    rates: str  # of x, y and the weights, as tuned; "automatic"; "as given"
    runs: dict[int, Record]  # by seed
    steps: int  # that each run was to make
    edges: tuple[str, ...] = ()  # tuned rates that are the largest or smallest tried, such as "largest x"

    @property
    def diverged(self) -> np.ndarray:
        """Which runs ended early, without a finite loss, or far above where they began."""
        return np.array([statistics.diverged(record, self.steps) for record in self.runs.values()], bool)

    def ends(self, column: str) -> np.ndarray:
        """The final values of a column, one per run; infinite where it diverged."""
        found = [statistics.final(record, column) for record in self.runs.values()]
        return np.where(self.diverged, np.inf, found)

    def has(self, column: str) -> bool:
        """Whether any run has a column; not every problem has selection and test rows."""
        return any(statistics.has(record, column) for record in self.runs.values())

    @property
    def ranked_by(self) -> str:
        """The column that ranks candidates: of rows that x was not fitted to, if the problem has any."""
        return next((name for name in ("worst_selection", "worst_test") if self.has(name)), "worst_validation")

    def at_best(self, column: str) -> np.ndarray:
        """A column at the best evaluation of each run, as in `result.best`; infinite where it diverged."""
        found = [statistics.at_best(record, column) for record in self.runs.values()]
        return np.where(self.diverged, np.inf, found)

    def usual_task(self, column: str) -> int | None:
        """The task that a column names most often at the ends of the runs; None without such a column."""
        ends = [record[column][-1] for record in self.runs.values() if statistics.has(record, column)]
        return Counter(int(end) for end in ends).most_common(1)[0][0] if ends else None

    @property
    def worst(self) -> float:
        """The final worst validation loss: the mean over the runs, or the median where some diverged."""
        return float(typical(self.ends("worst_validation")))

    @property
    def order(self) -> tuple[float, float]:
        """The key that sorts candidates: those that diverge more often come last."""
        return float(self.diverged.mean()), float(typical(self.ends(self.ranked_by)))


class Rank(NamedTuple):
    """A place, from 1, and where it lies in 95 % of the resamples of the seeds; NaN with fewer than two seeds."""

    place: int
    low: float
    high: float

    def ties(self, other: Rank) -> bool:
        """Whether the places are the same, or their intervals overlap."""
        return self.place == other.place or (self.low <= other.high and other.low <= self.high)


def typical(losses: np.ndarray) -> np.ndarray:
    """The mean over the last axis; the median where some are infinite, because their runs diverged."""
    return np.where(np.isinf(losses).any(axis=-1), np.median(losses, axis=-1), losses.mean(axis=-1))


def places(losses: np.ndarray) -> np.ndarray:
    """Places of solvers by their losses, (solvers, ..., seeds): first fewer diverged runs, then lower losses.

    Solvers whose losses are equal up to rounding share the first of their places.
    """
    diverged, loss = np.isinf(losses).mean(axis=-1), typical(losses)
    fewer = diverged[None] < diverged[:, None]
    below = np.where(np.isinf(loss), loss, loss - ROUNDING * np.abs(np.where(np.isinf(loss), 0, loss)))
    lower = (diverged[None] == diverged[:, None]) & (loss[None] < below[:, None])
    return 1 + (fewer | lower).sum(axis=1)


def ranks(losses: Sequence[Sequence[float]] | np.ndarray) -> list[Rank]:
    """The rank of every solver from its losses, one for each seed; infinite where a run diverged.

    Only the first seeds count, which all solvers have, and a resample draws the same seeds for all of them. A hard seed
    is hard for all, so its effect cancels.
    """
    if not len(losses):
        return []
    seeds = min(map(len, losses))
    common = np.array([row[:seeds] for row in losses], float)
    place = places(common)
    if seeds < 2:
        return [Rank(int(p), float("nan"), float("nan")) for p in place]
    drawn = np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))
    again = places(common[:, drawn])
    low, high = np.quantile(again, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=1, method="nearest")
    return [Rank(int(p), float(a), float(b)) for p, a, b in zip(place, low, high, strict=True)]


LOSSES = tuple(f"{what}_{rows}" for rows in ("validation", "selection", "test") for what in ("worst", "mean"))
TableRow = dict[str, str | float]


def table_row(
    candidate: Candidate, rank: Rank | None, test_rank: Rank | None, first: Rank | None, target: float
) -> TableRow:
    """One solver: means and standard deviations over its runs, and the mean calls and seconds of those at the target.

    Losses of diverged runs count as infinite: the median then replaces the mean, and there is no deviation. `first` is
    the rank of the first solver.
    """
    own, nan = candidate.profile, float("nan")
    row: TableRow = {"solver": candidate.name, "rates": candidate.rates, "at_edge": ", ".join(candidate.edges)}
    row |= {"steps": candidate.steps, "ranked_by": candidate.ranked_by}
    for name, known in {"rank": rank, "test_rank": test_rank}.items():
        place = (nan, nan, nan) if known is None else known
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), place, strict=True))
    row["ties_with_first"] = float(rank is not None and first is not None and rank.ties(first))
    for name in LOSSES:
        row |= _ends(candidate, name, candidate.ends)
    row |= _ends(candidate, "worst_test_at_best", candidate.at_best)
    steps = np.array([reached(record, target) for record in candidate.runs.values()])
    there = np.isfinite(steps)
    calls, seconds = own.calls_at(steps[there]), own.seconds * steps[there]
    return row | {
        "reached_target": float(there.mean()),
        "calls_to_target": float(calls.mean()) if there.any() else nan,
        "seconds_to_target": float(seconds.mean()) if there.any() else nan,
        "calls": float(own.calls_at(candidate.steps)),
        "calls_besides_steps": own.used.besides if own.used else nan,
        "calls_per_step": own.calls,
        "seconds_per_step": own.seconds,
        "state_megabytes": own.bytes / 1e6,
        "runs": len(candidate.runs),
        "diverged": float(candidate.diverged.mean()),
    }


def table_regrets(candidate: Candidate, names: Sequence[str]) -> TableRow:
    """Final worst regrets, and the tasks that most often have the worst loss and regret, for each kind of rows."""
    found: TableRow = {}
    for rows in ROWS:
        found |= _ends(candidate, f"regret_{rows}", candidate.ends)
        for column in (f"worst_{rows}_task", f"regret_{rows}_task"):
            task = candidate.usual_task(column)
            found[column] = "" if task is None else names[task]
    return found


def _ends(candidate: Candidate, name: str, of: Callable[[str], np.ndarray]) -> TableRow:
    """The mean and the deviation over the runs; NaN if the problem has no such rows."""
    column = name.removesuffix("_at_best")
    own = of(column) if candidate.has(column) else np.array([np.nan])
    several = len(own) > 1 and np.isfinite(own).all()
    deviation = float(own.std(ddof=1)) if several else float("nan")
    return {name: float(typical(own)), f"{name}_deviation": deviation}


def reached(record: Record, target: float) -> float:
    """The first evaluated step whose worst validation loss is at most the target; NaN if there is none."""
    there = np.flatnonzero(record["worst_validation"] <= target)
    return float(record["step"][there[0]]) if len(there) else float("nan")


def write_tables(rows: Sequence[TableRow], candidates: Sequence[Candidate], folder: Path) -> None:
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
    return tuple(finding for finding in (tie_for_first(rows), edge_of_grid(rows)) if finding is not None)


def tie_for_first(rows: Sequence[TableRow]) -> Finding | None:
    """Solvers whose rank cannot be told from the first one with these seeds."""
    tied = [f"{row['solver']}{', automatic' * (row['rates'] == AUTOMATIC)}" for row in rows if row["ties_with_first"]]
    if len(tied) < 2:
        return None
    return Finding(
        "tie",
        f"Tie for the first place (the same place, or intervals that overlap): {'; '.join(tied)}. "
        "More seeds may tell them apart.",
        {"solvers": len(tied)},
    )


def edge_of_grid(rows: Sequence[TableRow]) -> Finding | None:
    """Tuned rates at the edge of the grid: better ones may lie beyond."""
    edges = {str(row["solver"]): str(row["at_edge"]) for row in rows if row["at_edge"]}
    if not edges:
        return None
    tried = "; ".join(sorted(f"{solver}: {edge}" for solver, edge in edges.items()))
    words = f"Rates that are the largest or smallest tried: {tried}."
    if any("smallest x" in edge for edge in edges.values()):
        words += " Where this is the smallest rate of x, x did best when it hardly moved: it learns nothing useful."
    if any(edge != "smallest x" for edge in edges.values()):
        words += " Better rates may lie beyond: give a wider bl.Grid."
    return Finding("edge of the grid", words, edges)


WORST = {"worst_selection": "worst sel.", "worst_test": "worst test", "worst_validation": "worst val."}
RANKED_BY = {
    "worst_selection": "the worst loss on selection rows, which x never saw; it tuned the rates too",
    "worst_test": "the worst test loss; rates were tuned by the worst validation loss",
    "worst_validation": "the worst validation loss, which tuned the rates too: there are no other rows",
}
OF_TASKS = 'A regret is a loss minus what its task could reach; "of tasks" has the worst by loss and by regret.'


class Column(NamedTuple):
    """A column of text."""

    title: str
    width: int
    cell: Callable[[TableRow], str]
    align: str = ">"

    def text(self, words: str) -> str:
        """Words, padded to the width of the column."""
        return f"{words:{self.align}{self.width}}"


def table_text(title: str, rows: Sequence[TableRow], skipped: Mapping[str, str], target: float) -> str:
    """The table for a terminal. Columns that no solver has are left out."""
    goal = f"{target:.3g}"
    columns = _columns(rows, goal)
    return "\n".join(
        [
            f"{title}; the target is a worst validation loss of {goal}, reached by this share of the runs",
            "".join(column.text(column.title) for column in columns),
            *("".join(column.text(column.cell(row)) for column in columns) for row in rows),
            f"Ranked by {RANKED_BY[str(rows[0]['ranked_by'])]}.",
            *[OF_TASKS] * ("regret_test" in rows[0]),
            *map(str, table_findings(rows)),
            *(f"{name} cannot run here: {why}" for name, why in skipped.items()),
        ]
    )


def _columns(rows: Sequence[TableRow], goal: str) -> list[Column]:
    by = str(rows[0]["ranked_by"])
    found = [
        Column("rank", 4, lambda row: _cell(row["rank"], ".0f")),
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
        test_rank = lambda row: f"{_cell(row['test_rank'], '.0f')} {_interval(row, 'test_rank')}".rstrip()  # noqa: E731
        found.insert(-1, Column("rank by it", 12, test_rank))
    if by == "worst_selection" and _any(rows, "worst_test"):
        found.insert(-1, Column("test at best", 14, lambda row: _cell(row["worst_test_at_best"], ".4f")))
    return [
        *found,
        *_regrets(rows, by),
        Column("mean val.", 11, lambda row: _cell(row["mean_validation"], ".4f")),
        Column("steps", 8, lambda row: f"{row['steps']:,}"),
        Column("calls", 10, lambda row: _cell(row["calls"], ",.0f")),
        Column(f"calls to {goal}", 18, lambda row: _cell(row["calls_to_target"], ",.0f")),
        Column(f"seconds to {goal}", 20, lambda row: _cell(row["seconds_to_target"], ".3g")),
        Column("by", 6, lambda row: f"{row['reached_target']:.0%}"),
        Column("state MB", 11, lambda row: f"{row['state_megabytes']:.3g}"),
        Column("diverged", 10, lambda row: f"{row['diverged']:.0%}"),
    ]


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


def _any(rows: Sequence[TableRow], name: str) -> bool:
    return any(not np.isnan(float(row[name])) for row in rows)


def _interval(row: TableRow, name: str) -> str:
    low, high = (float(row[f"{name}_{end}"]) for end in ("low", "high"))
    return "" if np.isnan(low) else f"{low:.0f}-{high:.0f}"


def _cell(value: str | float, form: str) -> str:
    return "-" if np.isnan(float(value)) else "diverged" if np.isinf(float(value)) else format(value, form)


def _spread(mean: str | float, deviation: str | float) -> str:
    return _cell(mean, ".4f") + ("" if np.isnan(float(deviation)) else f" ± {deviation:.4f}")
