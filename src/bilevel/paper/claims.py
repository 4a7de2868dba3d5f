"""The claims that the paper's figures make, and what our runs show about them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from bilevel._studies import measures
from bilevel._studies.experiment import VARIANTS, Experiment
from bilevel._studies.records import Record, Records
from bilevel._studies.statistics import Interval, interval, slope
from bilevel.paper.fashion import FASHION
from bilevel.paper.letter import BATCHES, LETTER, TASKS
from bilevel.paper.sinusoids import MORE_SINUSOIDS, SINUSOIDS

NONE = "no runs"
Runs = Callable[[Experiment, str], dict[int, Record]]  # (experiment, method) -> runs by seed


class Evidence(NamedTuple):
    """What the runs show."""

    text: str
    verdict: str  # "holds", "does not hold", "inconclusive" or "no runs"


class Claim(NamedTuple):
    """A sentence of the paper, in our words, and how it is tested."""

    figure: str
    text: str
    test: Callable[[Runs], Evidence]


class TestedClaim(NamedTuple):
    """A claim, the variant of the experiment that it was tested on, and what came out."""

    claim: Claim
    variant: str
    evidence: Evidence


def evaluate_claims(
    records: Records, shorter: Callable[[Experiment], Experiment] = lambda experiment: experiment
) -> list[TestedClaim]:
    """Every claim with every variant."""

    def runs(variant: str, experiment: Experiment, method: str) -> dict[int, Record]:
        return records.read(shorter(experiment), variant, method)

    return [TestedClaim(claim, v, claim.test(functools.partial(runs, v))) for claim in CLAIMS for v in VARIANTS]


def lower(experiment: Experiment, column: str) -> Callable[[Runs], Evidence]:
    """min-max ends lower than min-avg: the paired difference over trials."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, column, measures.final)
        if not len(a):
            return Evidence("", NONE)
        difference = interval(b - a)
        text = f"{np.nanmean(a):.3f} to {np.nanmean(b):.3f}, difference {difference.text(3, '+')}, {_wins(a, b)}"
        return Evidence(text, difference.below(0))

    return test


def lowest_lower(experiment: Experiment, column: str) -> Callable[[Runs], Evidence]:
    """min-max gets lower than min-avg at its lowest, where losses range over decades: the paired ratio over trials."""

    def test(runs: Runs) -> Evidence:
        a, b = _ends(runs, experiment, column, measures.lowest)
        if not len(a):
            return Evidence("", NONE)
        logs = interval(np.log(b / a))
        ratio = Interval(np.exp(logs.mean), np.exp(logs.low), np.exp(logs.high), logs.trials)
        means = [np.exp(np.nanmean(np.log(ends))) for ends in (a, b)]
        text = f"geometric means {means[0]:.3g} to {means[1]:.3g}, ratio {ratio.text(2)}, {_wins(a, b)}"
        return Evidence(text, logs.below(0))

    return test


def _ends(runs: Runs, experiment: Experiment, column: str, of: Callable) -> tuple[np.ndarray, np.ndarray]:
    """min-avg's and min-max's numbers, paired by seed."""
    average, robust = runs(experiment, "min-avg"), runs(experiment, "min-max")
    seeds = measures.paired(average, robust)
    return np.array([of(average[s], column) for s in seeds]), np.array([of(robust[s], column) for s in seeds])


def _wins(a: np.ndarray, b: np.ndarray) -> str:
    return f"lower in {int(np.sum(b < a))} of {len(a)}"


def _each(values: Mapping[int, Record], of: Callable[[Record], float]) -> np.ndarray:
    return np.array([of(record) for record in values.values()])


def exponent_of_steps(runs: Runs) -> Evidence:
    """|gradient|^2 ~ K^p with p about -2/5."""
    found = runs(FASHION, "min-max")
    if not found:
        return Evidence("", NONE)
    p = interval(_each(found, measures.decay))
    return Evidence(f"exponent {p.text()}; near -0.4 means within 0.1", p.within(-0.5, -0.3))


def exponent_of_tasks(runs: Runs) -> Evidence:
    """|gradient|^2 ~ n^p with p about 1/2, at the end of equally many steps."""
    found = {n: runs(experiment, "min-max") for n, experiment in TASKS.items()}
    seeds = sorted(set.intersection(*(set(own) for own in found.values())))
    if not seeds:
        return Evidence("", NONE)
    norms = np.array([[measures.final(found[n][s], "gradient_norm_squared") for n in found] for s in seeds])
    p = interval(np.array([slope(np.array([*found], float), row) for row in norms]))
    means = ", ".join(f"n={n}: {value:.3g}" for n, value in zip(found, norms.mean(axis=0), strict=True))
    return Evidence(f"exponent {p.text()} ({means}); near 0.5 means within 0.1", p.within(0.4, 0.6))


def steadier_batches(runs: Runs) -> Evidence:
    """Batches of 128 jump less from one evaluation to the next than batches of 8."""
    return _batches(runs, measures.noise, lambda ratio: ratio.below(1), "jumps between evaluations")


def same_level(runs: Runs) -> Evidence:
    """Batches of 128 end where batches of 8 do, within a tenth."""
    return _batches(runs, measures.final, lambda ratio: ratio.within(0.9, 1.1), "final worst test loss")


def _batches(runs: Runs, of: Callable, verdict: Callable[[Interval], str], what: str) -> Evidence:
    small, large = runs(BATCHES[8], "min-max"), runs(BATCHES[128], "min-max")
    seeds = measures.paired(small, large)
    if not seeds:
        return Evidence("", NONE)
    a, b = ([of(own[s], "worst_test") for s in seeds] for own in (small, large))
    ratio = interval(np.array(b) / np.array(a))
    text = f"{what} {np.mean(a):.3g} with 8, {np.mean(b):.3g} with 128, ratio {ratio.text(2)}"
    return Evidence(text, verdict(ratio))


CLAIMS = (
    Claim("1a", "min-max lowers the worst validation loss (FashionMNIST)", lower(FASHION, "worst_validation")),
    Claim("1a", "min-max lowers the worst test loss (FashionMNIST)", lower(FASHION, "worst_test")),
    Claim("1b", "the squared gradient norm falls like K^-2/5", exponent_of_steps),
    Claim("1c", "min-max lowers the worst loss of 3 seen sinusoids", lowest_lower(SINUSOIDS, "worst_test")),
    Claim("1c", "min-max lowers the worst loss of 3 unseen sinusoids", lowest_lower(SINUSOIDS, "unseen_worst_test")),
    Claim("C.1", "the same with 20 seen sinusoids", lowest_lower(MORE_SINUSOIDS, "worst_test")),
    Claim("C.1", "the same with 20 unseen sinusoids", lowest_lower(MORE_SINUSOIDS, "unseen_worst_test")),
    Claim("2a", "min-max lowers the worst validation loss (Letter)", lower(LETTER, "worst_validation")),
    Claim("2a", "min-max lowers the worst test loss (Letter)", lower(LETTER, "worst_test")),
    Claim("2b", "at fixed K the squared gradient norm grows like sqrt(n)", exponent_of_tasks),
    Claim("2c", "larger batches make the worst test loss steadier", steadier_batches),
    Claim("2c", "and bring it to a very similar level", same_level),
)


def table(found: list[TestedClaim]) -> list[tuple[str, str, str, str, str]]:
    """(figure, claim, variant, evidence, verdict), a row each; without variants that were not run."""
    return [
        (f.claim.figure, f.claim.text, VARIANTS[f.variant], f.evidence.text, f.evidence.verdict)
        for f in found
        if f.evidence.verdict != NONE
    ]


def markdown(found: list[TestedClaim]) -> str:
    """The table for a page."""
    rows = [("figure", "claim", "variant", "what we measured", "verdict"), ("---",) * 5, *table(found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
