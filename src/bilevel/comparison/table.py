"""The table of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bilevel._studies.records import COLUMNS, Record, write_table
from bilevel.comparison.candidates import Candidate
from bilevel.comparison.ranks import Rank, typical

LOSSES = ("worst_validation", "mean_validation", "worst_test", "mean_test")
Row = dict[str, str | float]


def row(candidate: Candidate, rank: Rank | None, target: float) -> Row:
    """One solver: means and standard deviations over its runs; of runs that reach the target, the mean way there.

    Where some runs diverged, they count as infinite: the median stands for the mean, and there is no deviation.
    """
    own, nan = candidate.profile, float("nan")
    found: Row = {"solver": candidate.name, "rates": candidate.rates, "at_edge": ", ".join(candidate.edges)}
    found |= {"steps": candidate.steps, "rank": nan if rank is None else rank.place}
    found |= {"rank_low": nan if rank is None else rank.low, "rank_high": nan if rank is None else rank.high}
    found["ranked_by"] = candidate.ranked_by
    for name in LOSSES:
        ends = candidate.ends(name)
        found[name] = float(typical(ends))
        found[f"{name}_deviation"] = float(ends.std(ddof=1)) if len(ends) > 1 and np.isfinite(ends).all() else nan
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


def reached(record: Record, target: float) -> float:
    """The first evaluated step at which the worst validation loss is the target or lower; NaN if none is."""
    there = np.flatnonzero(record["worst_validation"] <= target)
    return float(record["step"][there[0]]) if len(there) else float("nan")


def text(title: str, rows: Sequence[Row], skipped: Mapping[str, str], target: float) -> str:
    """The table for a terminal."""
    goal = f"{target:.3g}"
    head = f"{'rank':>4} {'95 %':>7}  {'solver':<15}{'rates x, y, weights':<21}{'worst test':>17}{'worst val.':>17}"
    head += f"{'mean val.':>11}{'steps':>8}{'calls':>10}"
    head += f"{'calls to ' + goal:>18}{'seconds to ' + goal:>20}{'by':>6}{'state MB':>11}{'diverged':>10}"
    lines = [f"{title}; the target is a worst validation loss of {goal}, reached by this share of the runs", head]
    for r in rows:
        worst, test = (_spread(r[name], r[f"{name}_deviation"]) for name in ("worst_validation", "worst_test"))
        between = "-" if np.isnan(float(r["rank_low"])) else f"{r['rank_low']:.0f}-{r['rank_high']:.0f}"
        lines.append(
            f"{_number(r['rank'], '.0f'):>4} {between:>7}  {r['solver']:<15}{r['rates']:<21}{test:>17}{worst:>17}"
            f"{_number(r['mean_validation'], '.4f'):>11}{r['steps']:>8,}{_number(r['calls'], ',.0f'):>10}"
            f"{_number(r['calls_to_target'], ',.0f'):>18}{_number(r['seconds_to_target'], '.3g'):>20}"
            f"{r['reached_target']:>6.0%}{r['state_megabytes']:>11.3g}{r['diverged']:>10.0%}"
        )
    edges = {f"{r['solver']}: {r['at_edge']}" for r in rows if r["at_edge"]}
    if edges:
        lines.append(f"Rates that are the largest or smallest that were tried: {'; '.join(sorted(edges))}.")
    lines += [f"{name} cannot run here: {why}" for name, why in skipped.items()]
    return "\n".join(lines)


def _number(value: str | float, form: str) -> str:
    return "-" if np.isnan(float(value)) else "diverged" if np.isinf(float(value)) else format(value, form)


def _spread(mean: str | float, deviation: str | float) -> str:
    return _number(mean, ".4f") + ("" if np.isnan(float(deviation)) else f" ± {deviation:.4f}")


def write(rows: Sequence[Row], candidates: Sequence[Candidate], folder: Path) -> None:
    """comparison.csv, a row for every solver; runs.csv, a row for every evaluation."""
    write_table(folder / "comparison.csv", rows)
    evaluations: list[Row] = [
        {"solver": c.name, "rates": c.rates, "seed": seed, "calls": float(c.profile.calls_at(record["step"][i]))}
        | {"step_seconds": float(record["step"][i] * c.profile.seconds)}
        | {name: float(record[name][i]) for name in COLUMNS}
        for c in candidates
        for seed, record in c.runs.items()
        for i in range(len(record["step"]))
    ]
    write_table(folder / "runs.csv", evaluations)
