"""The table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bilevel._studies.measures import final
from bilevel._studies.records import COLUMNS, Record, write_table
from bilevel.comparison.candidates import Candidate

LOSSES = ("worst_validation", "mean_validation", "worst_test", "mean_test")
Row = dict[str, str | float]


def row(candidate: Candidate, target: float) -> Row:
    """One solver: means and standard deviations over its sound runs; of runs that reach the target, the mean way there.

    Runs that diverged are left out of the means and counted under `diverged`.
    """
    own = candidate.profile
    found: Row = {"solver": candidate.name, "rates": candidate.rates, "steps": candidate.steps}
    for name in LOSSES:
        ends = np.array([final(record, name) for record in candidate.sound])
        found[name] = float(ends.mean()) if len(ends) else float("nan")
        found[f"{name}_deviation"] = float(ends.std(ddof=1)) if len(ends) > 1 else float("nan")
    steps = np.array([reached(record, target) for record in candidate.runs.values()])
    known = np.isfinite(steps)
    found["reached_target"] = float(known.mean())
    mean = float(steps[known].mean()) if known.any() else float("nan")
    found |= {"calls_to_target": mean * own.calls, "seconds_to_target": mean * own.seconds}
    found |= {"calls_per_step": own.calls, "seconds_per_step": own.seconds}
    return found | {"state_megabytes": own.bytes / 1e6, "diverged": float(candidate.diverged.mean())}


def reached(record: Record, target: float) -> float:
    """The first evaluated step at which the worst validation loss is the target or lower; NaN if none is."""
    there = np.flatnonzero(record["worst_validation"] <= target)
    return float(record["step"][there[0]]) if len(there) else float("nan")


def text(title: str, rows: Sequence[Row], skipped: Mapping[str, str], target: float) -> str:
    """The table for a terminal."""
    goal = f"{target:.3g}"
    head = f"{'solver':<15}{'rates x, y, weights':<21}{'worst val.':>17}{'worst test':>17}{'mean val.':>11}"
    head += f"{'calls to ' + goal:>18}{'seconds to ' + goal:>20}{'by':>6}{'state MB':>11}{'diverged':>10}"
    lines = [f"{title}; the target is a worst validation loss of {goal}, reached by this share of the runs", head]
    for r in rows:
        worst, test = (_spread(r[name], r[f"{name}_deviation"]) for name in ("worst_validation", "worst_test"))
        lines.append(
            f"{r['solver']:<15}{r['rates']:<21}{worst:>17}{test:>17}{r['mean_validation']:>11.4f}"
            f"{_number(r['calls_to_target'], ',.0f'):>18}{_number(r['seconds_to_target'], '.3g'):>20}"
            f"{r['reached_target']:>6.0%}{r['state_megabytes']:>11.3g}{r['diverged']:>10.0%}"
        )
    lines += [f"{name} cannot run here: {why}" for name, why in skipped.items()]
    return "\n".join(lines)


def _number(value: str | float, form: str) -> str:
    return "-" if np.isnan(float(value)) else format(value, form)


def _spread(mean: str | float, deviation: str | float) -> str:
    return _number(mean, ".4f") + ("" if np.isnan(float(deviation)) else f" ± {deviation:.4f}")


def write(rows: Sequence[Row], candidates: Sequence[Candidate], folder: Path) -> None:
    """comparison.csv, a row for every solver; runs.csv, a row for every evaluation."""
    write_table(folder / "comparison.csv", rows)
    evaluations: list[Row] = [
        {"solver": c.name, "rates": c.rates, "seed": seed, "calls": float(record["step"][i] * c.profile.calls)}
        | {"step_seconds": float(record["step"][i] * c.profile.seconds)}
        | {name: float(record[name][i]) for name in COLUMNS}
        for c in candidates
        for seed, record in c.runs.items()
        for i in range(len(record["step"]))
    ]
    write_table(folder / "runs.csv", evaluations)
