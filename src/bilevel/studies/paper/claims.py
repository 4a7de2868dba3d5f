"""The claims of the paper's text and captions, and what our runs show about them.

How a claim is judged was fixed before the runs:

- Final numbers are means over the last tenth of a run up to the horizon; of sinusoids, as in the paper, the lowest
  worst loss so far. min-avg and min-max are paired by trial. A diverged trial counts with what it had reached.
- A claim gets ten trials first. If the interval does not decide, it gets 20, then 40, and a headline claim 80. So an
  interval is looked at four times at most, and each has 98.75 %: together 95 %. The first look that decides counts.
- "Lowers" holds if the whole interval is below zero. It does not hold if the interval excludes a gain of 2 % of
  min-avg's loss (10 % for sinusoids, whose losses range over decades). Otherwise it is inconclusive.
- "Falls like K^-2/5" means a fitted exponent within 0.1 of -0.4, "grows like sqrt(n)" one within 0.1 of 0.5, "very
  similar" within a tenth.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bilevel.studies import statistics
from bilevel.studies.paper.experiments import (
    BATCHES,
    FASHION,
    FREQUENCIES,
    LETTER,
    MORE_SINUSOIDS,
    SCRIPT_SINUSOIDS,
    SCRIPT_STEPS,
    SINUSOIDS,
    TASKS,
    VARIANTS,
)
from bilevel.studies.records import Experiment, Record, Records
from bilevel.studies.statistics import HOLDS, INCONCLUSIVE, REFUTED, Interval, slope, variance_ratio

ROUNDS = (10, 20, 40, 80)  # trials
NONE = "no runs"
CONFIDENCE = 0.9875  # an interval is looked at four times at most, as trials are added: together 95 %
GAIN, GAIN_OF_RATIO = 0.02, 0.1  # of min-avg's loss: a claim of a gain fails if this much is excluded
Shorter = Callable[[Experiment], Experiment]
Runs = Callable[[str], list[dict[int, Record]]]  # of a method, in each experiment of the claim: runs by seed
Test = Callable[[Runs], "Evidence"]
interval = functools.partial(statistics.interval, confidence=CONFIDENCE)


class Evidence(NamedTuple):
    """The evidence of finished runs for or against a claim."""

    text: str
    verdict: str  # "holds", "does not hold", "inconclusive" or "no runs"
    trials: int = 0
    needed: int | None = None  # about how many trials would decide, if these did not


MISSING = Evidence("", NONE)


def ends_lower(runs: Runs, column: str) -> Evidence:
    """min-max ends lower than min-avg: the paired difference over trials."""
    methods = [*runs("min-avg"), *runs("min-max")]
    a, b = _by_seed(methods, lambda run: statistics.final(run, column))
    trials = len(a)
    if not trials:
        return MISSING
    gone = _by_seed(methods, statistics.diverged)
    kept = ~np.any(gone, axis=0)
    a, b = a[kept], b[kept]
    difference = interval(b - a)
    text = f"{np.nanmean(a):.3f} to {np.nanmean(b):.3f}, difference {difference.text(3, '+')}, {_wins(a, b)}"
    if not gone.any():
        return _gain(text, difference, -GAIN * float(np.nanmean(a)), trials)
    said = f"of {trials} trials min-avg diverged in {gone[0].sum()} and min-max in {gone[1].sum()}"
    return Evidence(f"{said}; the others {text}", INCONCLUSIVE, trials)


def gets_lower(runs: Runs, column: str) -> Evidence:
    """min-max reaches a lower loss than min-avg: the paired ratio over trials, as losses range over decades."""
    a, b = _by_seed([*runs("min-avg"), *runs("min-max")], lambda run: statistics.last(run, f"lowest_{column}"))
    if not len(a):
        return MISSING
    logs = interval(np.log(b / a))
    ratio = Interval(np.exp(logs.mean), np.exp(logs.low), np.exp(logs.high), logs.trials)
    means = [np.exp(np.nanmean(np.log(ends))) for ends in (a, b)]
    text = f"geometric means {means[0]:.3g} to {means[1]:.3g}, ratio {ratio.text(2)}, {_wins(a, b)}"
    return _gain(text, logs, float(np.log(1 - GAIN_OF_RATIO)), len(a))


def exponent_of_steps(runs: Runs, column: str) -> Evidence:
    """A squared norm ~ K^p with p about -2/5."""
    [exponents] = _by_seed(runs("min-max"), lambda run: statistics.decay(run, column))
    p = interval(exponents)
    if not p.trials:
        return MISSING
    left = f"; {len(exponents) - p.trials} of {len(exponents)} could not be measured"
    text = f"exponent {p.text()}; near -0.4 means within 0.1{left * (p.trials < len(exponents))}"
    return _within(text, p, -0.5, -0.3, p.trials)


def exponent_of_tasks(runs: Runs, column: str, of: Callable[[Record, str], float] = statistics.final) -> Evidence:
    """A squared norm ~ n^p with p about 1/2, at the end of equally many steps."""
    norms = _by_seed(runs("min-max"), lambda run: of(run, column)).T
    if np.isnan(norms).all():
        return MISSING
    p = interval(np.array([slope(np.array([*TASKS], float), row) for row in norms]))
    means = ", ".join(f"n={n}: {value:.3g}" for n, value in zip(TASKS, np.nanmean(norms, axis=0), strict=True))
    text = f"exponent {p.text()} ({means}); near 0.5 means within 0.1"
    return _within(text, p, 0.4, 0.6, p.trials)


def ratio_of_batches(runs: Runs, of: Callable[[Record, str], float], low: float, high: float, what: str) -> Evidence:
    """A number of the worst test losses with large batches over that with small ones lies between two others."""
    a, b = _by_seed(runs("min-max"), lambda run: of(run, "worst_test"))
    if not len(a):
        return MISSING
    ratio = interval(b / a)
    text = f"{what} {np.mean(a):.3g} with 8, {np.mean(b):.3g} with 128, ratio {ratio.text(2)}"
    return _within(text, ratio, low, high, len(a))


def spread_less(runs: Runs) -> Evidence:
    """The losses of trials with large batches have a smaller variance at the end.

    Every trial draws other tasks, which move the losses with either batch: the pairs are correlated.
    """
    a, b = _by_seed(runs("min-max"), lambda run: statistics.final(run, "worst_test"))
    if len(a) < 3:
        return MISSING
    ratio = variance_ratio(a, b, CONFIDENCE)
    text = f"standard deviation over trials {a.std(ddof=1):.3g} with 8, {b.std(ddof=1):.3g} with 128"
    logs = Interval(np.log(ratio.mean), np.log(ratio.low), np.log(ratio.high), ratio.trials)
    return _within(f"{text}; ratio of the variances {ratio.text(2)}", logs, -np.inf, 0.0, len(a))


def _by_seed(runs: Sequence[dict[int, Record]], of: Callable[[Record], float]) -> np.ndarray:
    """A number of each run: a row for each method or experiment, a column for each seed that all of them have."""
    seeds = sorted(set.intersection(*map(set, runs)))
    return np.array([[of(own[seed]) for seed in seeds] for own in runs])


def _gain(text: str, difference: Interval, worth: float, trials: int) -> Evidence:
    """Whether a loss fell: yes if the interval is below zero, and no if all of it is above `worth`."""
    if difference.within(-np.inf, 0) == HOLDS:
        return Evidence(text, HOLDS, trials)
    if difference.low > worth:
        return Evidence(text, REFUTED, trials)
    needed = difference.trials_to(max(-difference.mean, difference.mean - worth))
    return Evidence(text, INCONCLUSIVE, trials, needed)


def _within(text: str, measured: Interval, low: float, high: float, trials: int) -> Evidence:
    """Whether a number lies between two others; if that is open, how many trials would show on which side it lies."""
    verdict = measured.within(low, high)
    nearest = min(abs(measured.mean - low), abs(measured.mean - high))
    return Evidence(text, verdict, trials, measured.trials_to(nearest) if verdict == INCONCLUSIVE else None)


def _wins(a: np.ndarray, b: np.ndarray) -> str:
    return f"lower in {int(np.sum(b < a))} of {len(a)}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, and the test of its experiments' runs."""

    figure: str
    text: str
    experiments: tuple[Experiment, ...]
    test: Test
    earlier: tuple[int, ...] = ()  # numbers of steps after which it is also judged
    headline: bool = False  # worth 80 trials

    @property
    def horizons(self) -> tuple[int, ...]:
        """The numbers of steps after which it is judged."""
        return *self.earlier, self.experiments[0].steps

    @property
    def most(self) -> int:
        """The most trials that are spent on it."""
        return ROUNDS[-1] if self.headline else ROUNDS[-2]

    @property
    def variants(self) -> list[str]:
        """The variants that all its experiments have."""
        return [v for v in VARIANTS if all(v in e.methods for e in self.experiments)]


class TestedClaim(NamedTuple):
    """A claim, the variant and the horizon of a test, and its evidence."""

    claim: Claim
    variant: str
    horizon: int
    evidence: Evidence

    @property
    def open(self) -> bool:
        """Whether more trials could decide it."""
        return self.evidence.verdict == INCONCLUSIVE and self.evidence.trials < self.claim.most


def _losses_fall(figure: str, experiment: Experiment, data: str) -> list[Claim]:
    """The claims on validation and test losses, which are also judged after a tenth of the run."""
    return [
        Claim(
            figure,
            f"min-max lowers the worst {kind} loss ({data})",
            (experiment,),
            functools.partial(ends_lower, column=f"worst_{kind}"),
            (experiment.steps // 10,),
            headline=True,
        )
        for kind in ("validation", "test")
    ]


def _sinusoids(figure: str, experiment: Experiment, seen: str, unseen: str, headline: bool = False) -> list[Claim]:
    """The claims on seen and on unseen tasks, which are also judged at the end of the script's run."""
    return [
        Claim(
            figure,
            f"min-max lowers the worst loss of {text}",
            (experiment,),
            functools.partial(gets_lower, column=column),
            (SCRIPT_STEPS,) if experiment.steps > SCRIPT_STEPS else (),
            headline,
        )
        for text, column in ((seen, "worst_test"), (unseen, "unseen_worst_test"))
    ]


_TASKS, _BATCHES = tuple(TASKS.values()), (BATCHES[8], BATCHES[128])
_batches_fall, _bounded_falls = (
    functools.partial(exponent_of_steps, column=column) for column in ("gradient_norm_squared", "residual")
)
_batches_grow = functools.partial(exponent_of_tasks, column="gradient_norm_squared")
_bounded_grows = functools.partial(exponent_of_tasks, column="residual", of=statistics.last)
_steadier = functools.partial(
    ratio_of_batches, of=statistics.noise, low=-np.inf, high=1.0, what="jumps between evaluations"
)
_same_level = functools.partial(ratio_of_batches, of=statistics.final, low=0.9, high=1.1, what="final worst test loss")
_BOUNDED = "what Theorem 1 bounds (of the scripts: their direction"
CLAIMS = (
    *_losses_fall("1a", FASHION, "FashionMNIST"),
    Claim("1b", "the squared gradient norm of batches falls like K^-2/5", (FASHION,), _batches_fall),
    Claim("1b", f"{_BOUNDED} on all data) falls like K^-2/5", (FASHION,), _bounded_falls),
    *(
        claim
        for figure, count, experiments in (("1c", 3, SINUSOIDS), ("C.1", 20, MORE_SINUSOIDS))
        for frequencies, said in FREQUENCIES.items()
        for claim in _sinusoids(
            figure,
            experiments[frequencies],
            f"{count} seen sinusoids, {said}",
            f"{count} unseen sinusoids, {said}",
            headline=figure == "1c",
        )
    ),
    *_sinusoids("C.1", SCRIPT_SINUSOIDS, "the script's own 20 seen sinusoids", "its 10 unseen sinusoids"),
    *_losses_fall("2a", LETTER, "Letter"),
    Claim("2b", "at fixed K the squared gradient norm of batches grows like sqrt(n)", _TASKS, _batches_grow),
    Claim("2b", f"at fixed K {_BOUNDED}) grows like sqrt(n)", _TASKS, _bounded_grows),
    Claim("2b", f"{_BOUNDED}) falls like K^-2/5 (Letter)", (LETTER,), _bounded_falls),
    Claim("2c", "larger batches make the worst test loss steadier", _BATCHES, _steadier),
    Claim("2c", "and reduce its variance over trials", _BATCHES, spread_less),
    Claim("2c", "and bring it to a very similar level", _BATCHES, _same_level),
)


def first_decision(look: Callable[[int], Evidence], most: int) -> Evidence:
    """The evidence of the first look that decides, or of the last one. After the first, looks are at whole rounds.

    Another claim may need more trials of the same runs: they do not change this verdict.
    """
    found = look(ROUNDS[0])
    for trials in ROUNDS[1:]:
        if found.verdict != INCONCLUSIVE or trials > most:
            break
        following = look(trials)
        if following.trials < trials:
            break
        found = following
    return found


def evaluate_claims(records: Records, shorter: Shorter = lambda experiment: experiment) -> list[TestedClaim]:
    """Every claim with every variant at every horizon."""

    @functools.cache
    def read(experiment: Experiment, variant: str, method: str) -> dict[int, Record]:
        return records.read(shorter(experiment), variant, method)

    def evidence(claim: Claim, variant: str, horizon: int) -> Evidence:
        whole = claim.experiments[0]
        until = horizon * shorter(whole).steps // whole.steps

        def look(trials: int) -> Evidence:
            def runs(method: str) -> list[dict[int, Record]]:
                found = [read(experiment, variant, method) for experiment in claim.experiments]
                return [{seed: run.until(until) for seed, run in own.items() if seed < trials} for own in found]

            return claim.test(runs)

        return first_decision(look, claim.most)

    return [TestedClaim(c, v, h, evidence(c, v, h)) for c in CLAIMS for v in c.variants for h in c.horizons]


HEAD = ("figure", "claim", "variant", "steps", "trials", "what we measured", "verdict")


def table(found: list[TestedClaim]) -> list[tuple[str, ...]]:
    """A row for each claim, variant and horizon that was run; an open verdict with the trials that would decide it."""
    rows = []
    for claim, variant, horizon, (text, verdict, trials, needed) in found:
        if verdict != NONE:
            said = verdict if needed is None else f"{verdict}: about {needed:,} trials would decide"
            rows.append((claim.figure, claim.text, VARIANTS[variant], f"{horizon:,}", str(trials), text, said))
    return rows


def markdown(found: list[TestedClaim]) -> str:
    """The table for a page."""
    rows = [HEAD, ("---",) * len(HEAD), *table(found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
