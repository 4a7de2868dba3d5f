"""What finished runs say about a claim: each test turns them into a text and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.experiment import Experiment
from bilevel._studies.records import Record
from bilevel._studies.statistics import HOLDS, INCONCLUSIVE, REFUTED, Interval, interval, slope, variance_ratio

NONE = "no runs"
CONFIDENCE = 0.9875  # an interval is looked at four times at most, as trials are added: together 95 %
GAIN, GAIN_OF_RATIO = 0.02, 0.1  # of min-avg's loss: a claim of a gain fails where as much is excluded
Runs = Callable[[Experiment, str], dict[int, Record]]  # (experiment, method) -> runs by seed
Test = Callable[[Runs], "Evidence"]


class Evidence(NamedTuple):
    """What the runs show."""

    text: str
    verdict: str  # "holds", "does not hold", "inconclusive" or "no runs"
    trials: int = 0
    needed: int | None = None  # trials that would decide, about, where these did not


MISSING = Evidence("", NONE)


def lower(experiment: Experiment, column: str) -> Test:
    """min-max ends lower than min-avg: the paired difference over trials."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, column, measures.final)
        if not len(a):
            return MISSING
        gone = _diverged(runs, experiment)
        kept, trials = ~np.any(gone, axis=0), len(a)
        a, b = a[kept], b[kept]
        difference = interval(b - a, CONFIDENCE)
        text = f"{np.nanmean(a):.3f} to {np.nanmean(b):.3f}, difference {difference.text(3, '+')}, {_wins(a, b)}"
        if not gone.any():
            return _gain(text, difference, -GAIN * float(np.nanmean(a)), trials)
        said = f"of {trials} trials min-avg diverged in {gone[0].sum()} and min-max in {gone[1].sum()}"
        return Evidence(f"{said}; the others {text}", INCONCLUSIVE, trials)

    return test


def lowest_lower(experiment: Experiment, column: str) -> Test:
    """min-max gets lower than min-avg at its lowest, where losses range over decades: the paired ratio over trials."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, f"lowest_{column}", measures.last)
        if not len(a):
            return MISSING
        logs = interval(np.log(b / a), CONFIDENCE)
        ratio = Interval(np.exp(logs.mean), np.exp(logs.low), np.exp(logs.high), logs.trials)
        means = [np.exp(np.nanmean(np.log(ends))) for ends in (a, b)]
        text = f"geometric means {means[0]:.3g} to {means[1]:.3g}, ratio {ratio.text(2)}, {_wins(a, b)}"
        return _gain(text, logs, float(np.log(1 - GAIN_OF_RATIO)), len(a))

    return test


def _gain(text: str, difference: Interval, worth: float, trials: int) -> Evidence:
    """Whether something fell: all of the interval is below zero; or none of it is as low as `worth`."""
    if difference.below(0) == HOLDS:
        return Evidence(text, HOLDS, trials)
    if difference.low > worth:
        return Evidence(text, REFUTED, trials)
    needed = difference.trials_to(max(-difference.mean, difference.mean - worth))
    return Evidence(text, INCONCLUSIVE, trials, needed)


def _within(text: str, measured: Interval, low: float, high: float, trials: int) -> Evidence:
    """Whether a number lies between two others."""
    verdict = measured.within(low, high)
    needed = measured.trials_to_decide(low, high) if verdict == INCONCLUSIVE else None
    return Evidence(text, verdict, trials, needed)


def _ends(runs: Runs, experiment: Experiment, column: str, of: Callable) -> tuple[np.ndarray, np.ndarray]:
    """min-avg's and min-max's numbers, paired by seed."""
    average, robust = runs(experiment, "min-avg"), runs(experiment, "min-max")
    seeds = measures.paired(average, robust)
    return np.array([of(average[s], column) for s in seeds]), np.array([of(robust[s], column) for s in seeds])


def _diverged(runs: Runs, experiment: Experiment) -> np.ndarray:
    """Of min-avg and of min-max, which trials ended far above where they began or without a number."""
    found = runs(experiment, "min-avg"), runs(experiment, "min-max")
    seeds = measures.paired(*found)
    return np.array([[measures.diverged(own[s], int(own[s]["step"][-1])) for s in seeds] for own in found])


def _wins(a: np.ndarray, b: np.ndarray) -> str:
    return f"lower in {int(np.sum(b < a))} of {len(a)}"


def exponent_of_steps(experiment: Experiment, column: str) -> Test:
    """A squared norm ~ K^p with p about -2/5."""

    def test(runs: Runs) -> Evidence:
        found = runs(experiment, "min-max")
        p = interval(np.array([measures.decay(record, column) for record in found.values()]), CONFIDENCE)
        if not p.trials:
            return MISSING
        left = f"; {len(found) - p.trials} of {len(found)} could not be measured" if p.trials < len(found) else ""
        return _within(f"exponent {p.text()}; near -0.4 means within 0.1{left}", p, -0.5, -0.3, p.trials)

    return test


def exponent_of_tasks(
    experiments: Mapping[int, Experiment], column: str, of: Callable[[Record, str], float] = measures.final
) -> Test:
    """A squared norm ~ n^p with p about 1/2, at the end of equally many steps."""

    def test(runs: Runs) -> Evidence:
        found = {n: runs(experiment, "min-max") for n, experiment in experiments.items()}
        seeds = sorted(set.intersection(*(set(own) for own in found.values())))
        norms = np.array([[of(found[n][s], column) for n in found] for s in seeds])
        if not seeds or np.isnan(norms).all():
            return MISSING
        p = interval(np.array([slope(np.array([*found], float), row) for row in norms]), CONFIDENCE)
        means = ", ".join(f"n={n}: {value:.3g}" for n, value in zip(found, np.nanmean(norms, axis=0), strict=True))
        text = f"exponent {p.text()} ({means}); near 0.5 means within 0.1"
        return _within(text, p, 0.4, 0.6, p.trials)

    return test


def steadier(small: Experiment, large: Experiment) -> Test:
    """Large batches jump less from one evaluation to the next than small ones."""
    return _batches(small, large, measures.noise, (-np.inf, 1.0), "jumps between evaluations")


def spread_less(small: Experiment, large: Experiment) -> Test:
    """The losses of trials with large batches have a smaller variance at the end.

    Every trial draws other tasks, which move the losses with either batch: the pairs are correlated.
    """

    def test(runs: Runs) -> Evidence:
        a, b = _paired(runs, small, large, measures.final)
        if len(a) < 3:
            return MISSING
        ratio = variance_ratio(a, b, CONFIDENCE)
        text = f"standard deviation over trials {a.std(ddof=1):.3g} with 8, {b.std(ddof=1):.3g} with 128"
        logs = Interval(np.log(ratio.mean), np.log(ratio.low), np.log(ratio.high), ratio.trials)
        return _within(f"{text}; ratio of the variances {ratio.text(2)}", logs, -np.inf, 0.0, len(a))

    return test


def same_level(small: Experiment, large: Experiment) -> Test:
    """Large batches end where small ones do, within a tenth."""
    return _batches(small, large, measures.final, (0.9, 1.1), "final worst test loss")


def _batches(small: Experiment, large: Experiment, of: Callable, bounds: tuple[float, float], what: str) -> Test:
    def test(runs: Runs) -> Evidence:
        a, b = _paired(runs, small, large, of)
        if not len(a):
            return MISSING
        ratio = interval(b / a, CONFIDENCE)
        text = f"{what} {np.mean(a):.3g} with 8, {np.mean(b):.3g} with 128, ratio {ratio.text(2)}"
        return _within(text, ratio, *bounds, len(a))

    return test


def _paired(runs: Runs, small: Experiment, large: Experiment, of: Callable) -> tuple[np.ndarray, np.ndarray]:
    found = runs(small, "min-max"), runs(large, "min-max")
    seeds = measures.paired(*found)
    a, b = (np.array([of(own[s], "worst_test") for s in seeds]) for own in found)
    return a, b
