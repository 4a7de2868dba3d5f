"""The table of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bilevel._studies.records import COLUMNS, REGRETS, ROWS, Record, write_table
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.ranks import Rank, typical

LOSSES = tuple(f"{what}_{rows}" for rows in ("validation", "selection", "test") for what in ("worst", "mean"))
Row = dict[str, str | float]


class Ranks(NamedTuple):
    """Where a solver comes in: by what solvers are ranked by, by test rows, and who comes in first."""

    own: Rank | None
    test: Rank | None
    first: Rank | None


def row(candidate: Candidate, ranks: Ranks, target: float) -> Row:
    """One solver: means and standard deviations over its runs; of runs that reach the target, the mean way there.

    Where some runs diverged, they count as infinite: the median stands for the mean, and there is no deviation.
    """
    own, nan = candidate.profile, float("nan")
    found: Row = {"solver": candidate.name, "rates": candidate.rates, "at_edge": ", ".join(candidate.edges)}
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


def regrets(candidate: Candidate, names: Sequence[str]) -> Row:
    """Final worst regrets, and the tasks with the worst loss and regret, those of most runs; by kind of rows."""
    found: Row = {}
    for rows in ROWS:
        found |= _ends(candidate, f"regret_{rows}", candidate.ends)
        for column in (f"worst_{rows}_task", f"regret_{rows}_task"):
            task = candidate.usual_task(column)
            found[column] = "" if task is None else names[task]
    return found


def _losses(candidate: Candidate) -> Row:
    """Final losses, and test losses where a run was best; NaN for rows that the problem does not have."""
    found: Row = {}
    ends = dict.fromkeys(LOSSES, candidate.ends) | {"worst_test_at_best": candidate.at_best}
    for name, of in ends.items():
        found |= _ends(candidate, name, of)
    return found


def _ends(candidate: Candidate, name: str, of: Callable[[str], np.ndarray]) -> Row:
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


def write(rows: Sequence[Row], candidates: Sequence[Candidate], folder: Path) -> None:
    """comparison.csv, a row for every solver; runs.csv, a row for every evaluation."""
    write_table(folder / "comparison.csv", rows)
    evaluations: list[Row] = [
        {"solver": c.name, "rates": c.rates, "seed": seed, "calls": float(c.profile.calls_at(record["step"][i]))}
        | {"step_seconds": float(record["step"][i] * c.profile.seconds)}
        | {name: float(record[name][i]) for name in (*COLUMNS, *REGRETS) if name in record.columns}
        for c in candidates
        for seed, record in c.runs.items()
        for i in range(len(record["step"]))
    ]
    write_table(folder / "runs.csv", evaluations)
