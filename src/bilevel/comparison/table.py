"""The table of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bilevel._studies.measures import final
from bilevel._studies.records import COLUMNS, write_table
from bilevel.comparison.compare import Comparison
from bilevel.comparison.runner import Entry, diverged

LOSSES = ("worst_validation", "mean_validation", "worst_test", "mean_test")


def row(entry: Entry, target: float) -> dict[str, Any]:
    """One solver: means and standard deviations over its runs; of runs that reach the target, the mean way to it."""
    runs, gone = list(entry.runs.values()), diverged(entry)
    found: dict[str, Any] = {"solver": entry.entrant.name, "rates": entry.rates, "steps": entry.steps}
    for name in LOSSES:
        ends = np.array([final(r, name) for r, bad in zip(runs, gone, strict=True) if not bad])
        found[name] = float(ends.mean()) if len(ends) else float("nan")
        found[f"{name}_deviation"] = float(ends.std(ddof=1)) if len(ends) > 1 else float("nan")
    steps = np.array([reached(r, target) for r in runs])
    known = np.isfinite(steps)
    found["reached_target"] = float(known.mean())
    mean = float(steps[known].mean()) if known.any() else float("nan")
    found["calls_to_target"] = mean * entry.entrant.calls
    found["seconds_to_target"] = mean * entry.entrant.seconds
    found |= {"calls_per_step": entry.entrant.calls, "seconds_per_step": entry.entrant.seconds}
    return found | {"state_megabytes": entry.entrant.bytes / 1e6, "diverged": float(gone.mean())}


def reached(record: Any, target: float) -> float:
    """The first evaluated step at which the worst validation loss is the target or lower; NaN if none is."""
    there = np.flatnonzero(record["worst_validation"] <= target)
    return float(record["step"][there[0]]) if len(there) else float("nan")


def text(comparison: Comparison) -> str:
    """The table for a terminal."""
    target = f"{comparison.target:.3g}"
    head = f"{'solver':<15}{'rates x, y, weights':<21}{'worst val.':>17}{'worst test':>17}{'mean val.':>11}"
    head += f"{'calls to ' + target:>18}{'seconds to ' + target:>20}{'by':>6}{'state MB':>11}{'diverged':>10}"
    said = f"{comparison.title}; all solvers as min-max methods; {target} is the target, reached by so many runs"
    lines = [said, head]
    for r in comparison.table():
        worst, test = (_spread(r[name], r[f"{name}_deviation"]) for name in ("worst_validation", "worst_test"))
        lines.append(
            f"{r['solver']:<15}{r['rates']:<21}{worst:>17}{test:>17}{r['mean_validation']:>11.4f}"
            f"{_number(r['calls_to_target'], ',.0f'):>18}{_number(r['seconds_to_target'], '.3g'):>20}"
            f"{r['reached_target']:>6.0%}{r['state_megabytes']:>11.3g}{r['diverged']:>10.0%}"
        )
    lines += [f"{name} cannot run here: {why}" for name, why in comparison.skipped.items()]
    return "\n".join(lines)


def _number(value: float, form: str) -> str:
    return "-" if np.isnan(value) else format(value, form)


def _spread(mean: float, deviation: float) -> str:
    return _number(mean, ".4f") + ("" if np.isnan(deviation) else f" ± {deviation:.4f}")


def write(comparison: Comparison, folder: Path) -> None:
    """comparison.csv, a row for every solver; runs.csv, a row for every evaluation."""
    write_table(folder / "comparison.csv", comparison.table())
    rows = [
        {"solver": e.entrant.name, "rates": e.rates, "seed": seed, "calls": float(record["step"][i] * e.entrant.calls)}
        | {"step_seconds": float(record["step"][i] * e.entrant.seconds)}
        | {name: float(record[name][i]) for name in COLUMNS}
        for e in comparison.entries
        for seed, record in e.runs.items()
        for i in range(len(record["step"]))
    ]
    write_table(folder / "runs.csv", rows)
