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
from collections.abc import Callable, Mapping, Sequence
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
from bilevel.studies.statistics import HOLDS, INCONCLUSIVE, REFUTED, Interval, interval, slope, variance_ratio

ROUNDS = (10, 20, 40, 80)  # trials
Shorter = Callable[[Experiment], Experiment]
NONE = "no runs"
CONFIDENCE = 0.9875  # an interval is looked at four times at most, as trials are added: together 95 %
GAIN, GAIN_OF_RATIO = 0.02, 0.1  # of min-avg's loss: a claim of a gain fails if this much is excluded
Runs = Callable[[Experiment, str], dict[int, Record]]  # (experiment, method) -> runs by seed
Test = Callable[[Runs], "Evidence"]


class Evidence(NamedTuple):
    """The evidence of finished runs for or against a claim."""

    text: str
    verdict: str  # "holds", "does not hold", "inconclusive" or "no runs"
    trials: int = 0
    needed: int | None = None  # about how many trials would decide, if these did not


MISSING = Evidence("", NONE)


def ends_lower(experiment: Experiment, column: str) -> Test:
    """min-max ends lower than min-avg: the paired difference over trials."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, column, statistics.final)
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


def gets_lower(experiment: Experiment, column: str) -> Test:
    """min-max reaches a lower loss than min-avg: the paired ratio over trials, as losses range over decades."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, f"lowest_{column}", statistics.last)
        if not len(a):
            return MISSING
        logs = interval(np.log(b / a), CONFIDENCE)
        ratio = Interval(np.exp(logs.mean), np.exp(logs.low), np.exp(logs.high), logs.trials)
        means = [np.exp(np.nanmean(np.log(ends))) for ends in (a, b)]
        text = f"geometric means {means[0]:.3g} to {means[1]:.3g}, ratio {ratio.text(2)}, {_wins(a, b)}"
        return _gain(text, logs, float(np.log(1 - GAIN_OF_RATIO)), len(a))

    return test


def exponent_of_steps(experiment: Experiment, column: str) -> Test:
    """A squared norm ~ K^p with p about -2/5."""

    def test(runs: Runs) -> Evidence:
        found = runs(experiment, "min-max")
        p = interval(np.array([statistics.decay(record, column) for record in found.values()]), CONFIDENCE)
        if not p.trials:
            return MISSING
        left = f"; {len(found) - p.trials} of {len(found)} could not be measured" if p.trials < len(found) else ""
        return _within(f"exponent {p.text()}; near -0.4 means within 0.1{left}", p, -0.5, -0.3, p.trials)

    return test


def exponent_of_tasks(
    experiments: Mapping[int, Experiment], column: str, of: Callable[[Record, str], float] = statistics.final
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
    return _batches(small, large, statistics.noise, (-np.inf, 1.0), "jumps between evaluations")


def spread_less(small: Experiment, large: Experiment) -> Test:
    """The losses of trials with large batches have a smaller variance at the end.

    Every trial draws other tasks, which move the losses with either batch: the pairs are correlated.
    """

    def test(runs: Runs) -> Evidence:
        a, b = _paired(runs, small, large, statistics.final)
        if len(a) < 3:
            return MISSING
        ratio = variance_ratio(a, b, CONFIDENCE)
        text = f"standard deviation over trials {a.std(ddof=1):.3g} with 8, {b.std(ddof=1):.3g} with 128"
        logs = Interval(np.log(ratio.mean), np.log(ratio.low), np.log(ratio.high), ratio.trials)
        return _within(f"{text}; ratio of the variances {ratio.text(2)}", logs, -np.inf, 0.0, len(a))

    return test


def same_level(small: Experiment, large: Experiment) -> Test:
    """Large batches end at the same loss as small ones, within a tenth."""
    return _batches(small, large, statistics.final, (0.9, 1.1), "final worst test loss")


def _batches(small: Experiment, large: Experiment, of: Callable, bounds: tuple[float, float], what: str) -> Test:
    def test(runs: Runs) -> Evidence:
        a, b = _paired(runs, small, large, of)
        if not len(a):
            return MISSING
        ratio = interval(b / a, CONFIDENCE)
        text = f"{what} {np.mean(a):.3g} with 8, {np.mean(b):.3g} with 128, ratio {ratio.text(2)}"
        return _within(text, ratio, *bounds, len(a))

    return test


def _gain(text: str, difference: Interval, worth: float, trials: int) -> Evidence:
    """Whether a loss fell: yes if the interval is below zero, and no if all of it is above `worth`."""
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
    seeds = statistics.paired(average, robust)
    return np.array([of(average[s], column) for s in seeds]), np.array([of(robust[s], column) for s in seeds])


def _paired(runs: Runs, small: Experiment, large: Experiment, of: Callable) -> tuple[np.ndarray, np.ndarray]:
    found = runs(small, "min-max"), runs(large, "min-max")
    seeds = statistics.paired(*found)
    a, b = (np.array([of(own[s], "worst_test") for s in seeds]) for own in found)
    return a, b


def _diverged(runs: Runs, experiment: Experiment) -> np.ndarray:
    """Which trials of min-avg and of min-max ended far above their first loss or without a number."""
    found = runs(experiment, "min-avg"), runs(experiment, "min-max")
    seeds = statistics.paired(*found)
    return np.array([[statistics.diverged(own[s], int(own[s]["step"][-1])) for s in seeds] for own in found])


def _wins(a: np.ndarray, b: np.ndarray) -> str:
    return f"lower in {int(np.sum(b < a))} of {len(a)}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, and its test.

    Args:
        figure: of the paper.
        text: the statement.
        experiments: the experiments whose runs are tested.
        test: the test of these runs.
        earlier: numbers of steps after which it is also judged.
        headline: worth 80 trials.
    """

    figure: str
    text: str
    experiments: tuple[Experiment, ...]
    test: Test
    earlier: tuple[int, ...] = ()
    headline: bool = False

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
            ends_lower(experiment, f"worst_{kind}"),
            (experiment.steps // 10,),
            headline=True,
        )
        for kind in ("validation", "test")
    ]


def _sinusoids(figure: str, experiment: Experiment, tasks: Sequence[str], headline: bool) -> list[Claim]:
    """The claims on seen and on unseen tasks, which are also judged at the end of the script's run."""
    return [
        Claim(
            figure,
            f"min-max lowers the worst loss of {text}",
            (experiment,),
            gets_lower(experiment, column),
            (SCRIPT_STEPS,) if experiment.steps > SCRIPT_STEPS else (),
            headline,
        )
        for text, column in zip(tasks, ("worst_test", "unseen_worst_test"), strict=True)
    ]


def _drawn(figure: str, count: int, experiments: dict[tuple[float, float], Experiment], headline: bool) -> list[Claim]:
    return [
        claim
        for frequencies, said in FREQUENCIES.items()
        for claim in _sinusoids(
            figure,
            experiments[frequencies],
            [f"{count} {kind} sinusoids, {said}" for kind in ("seen", "unseen")],
            headline,
        )
    ]


BATCH, RESIDUAL = "gradient_norm_squared", "residual"
_TASKS = tuple(TASKS.values())
CLAIMS = (
    *_losses_fall("1a", FASHION, "FashionMNIST"),
    Claim(
        "1b",
        "the squared gradient norm of batches falls like K^-2/5",
        (FASHION,),
        exponent_of_steps(FASHION, BATCH),
    ),
    Claim(
        "1b",
        "what Theorem 1 bounds (of the scripts: their direction on all data) falls like K^-2/5",
        (FASHION,),
        exponent_of_steps(FASHION, RESIDUAL),
    ),
    *_drawn("1c", 3, SINUSOIDS, headline=True),
    *_drawn("C.1", 20, MORE_SINUSOIDS, headline=False),
    *_sinusoids(
        "C.1", SCRIPT_SINUSOIDS, ["the script's own 20 seen sinusoids", "its 10 unseen sinusoids"], headline=False
    ),
    *_losses_fall("2a", LETTER, "Letter"),
    Claim(
        "2b",
        "at fixed K the squared gradient norm of batches grows like sqrt(n)",
        _TASKS,
        exponent_of_tasks(TASKS, BATCH),
    ),
    Claim(
        "2b",
        "at fixed K what Theorem 1 bounds (of the scripts: their direction) grows like sqrt(n)",
        _TASKS,
        exponent_of_tasks(TASKS, RESIDUAL, statistics.last),
    ),
    Claim(
        "2b",
        "what Theorem 1 bounds (of the scripts: their direction) falls like K^-2/5 (Letter)",
        (LETTER,),
        exponent_of_steps(LETTER, RESIDUAL),
    ),
    Claim(
        "2c",
        "larger batches make the worst test loss steadier",
        (BATCHES[8], BATCHES[128]),
        steadier(BATCHES[8], BATCHES[128]),
    ),
    Claim(
        "2c",
        "and reduce its variance over trials",
        (BATCHES[8], BATCHES[128]),
        spread_less(BATCHES[8], BATCHES[128]),
    ),
    Claim(
        "2c",
        "and bring it to a very similar level",
        (BATCHES[8], BATCHES[128]),
        same_level(BATCHES[8], BATCHES[128]),
    ),
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
    known: dict[tuple[str, str, str], dict[int, Record]] = {}

    def read(experiment: Experiment, variant: str, method: str) -> dict[int, Record]:
        key = experiment.name, variant, method
        if key not in known:
            known[key] = records.read(shorter(experiment), variant, method)
        return known[key]

    def tested(claim: Claim, variant: str, horizon: int) -> TestedClaim:
        whole = claim.experiments[0]
        until = horizon * shorter(whole).steps // whole.steps

        def look(trials: int) -> Evidence:
            def runs(experiment: Experiment, method: str) -> dict[int, Record]:
                own = read(experiment, variant, method)
                return {seed: record.until(until) for seed, record in own.items() if seed < trials}

            return claim.test(runs)

        return TestedClaim(claim, variant, horizon, first_decision(look, claim.most))

    return [tested(claim, v, h) for claim in CLAIMS for v in claim.variants for h in claim.horizons]


HEAD = ("figure", "claim", "variant", "steps", "trials", "what we measured", "verdict")


def table(found: list[TestedClaim]) -> list[tuple[str, ...]]:
    """A row for each claim, variant and horizon that was run."""
    return [
        (
            *(f.claim.figure, f.claim.text, VARIANTS[f.variant], f"{f.horizon:,}"),
            *(str(f.evidence.trials), f.evidence.text, _verdict(f.evidence)),
        )
        for f in found
        if f.evidence.verdict != NONE
    ]


def _verdict(found: Evidence) -> str:
    """The verdict, and the number of trials that an open claim would need."""
    return found.verdict if found.needed is None else f"{found.verdict}: about {found.needed:,} trials would decide"


def markdown(found: list[TestedClaim]) -> str:
    """The table for a page."""
    rows = [HEAD, ("---",) * len(HEAD), *table(found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
