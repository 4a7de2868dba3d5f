"""The claims of the paper's text and captions, and what our runs show about them.

How a claim is judged was fixed before the runs:

- Final numbers are means over the last tenth of a run up to the horizon; of sinusoids, as in the paper, the lowest
  worst loss so far. min-avg and min-max are paired by trial. A diverged trial counts with what it had reached.
- Ten trials first. Where the interval does not decide, 20, then 40; for the headline claims 80. An interval is looked
  at four times at most, so each has 98.75 %: together 95 %. The first look that decides counts.
- "Lowers" holds if all of the interval is below zero; it does not hold if a gain of 2 % of min-avg's loss (of
  sinusoids, whose losses range over decades, of 10 %) is excluded; otherwise it is inconclusive.
- "Falls like K^-2/5" means a fitted exponent within 0.1 of -0.4, "grows like sqrt(n)" one within 0.1 of 0.5, "very
  similar" within a tenth.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bilevel._studies import measures
from bilevel._studies.experiment import Experiment
from bilevel._studies.records import Record, Records
from bilevel._studies.statistics import INCONCLUSIVE
from bilevel.paper import evidence
from bilevel.paper.evidence import NONE, Evidence, Test
from bilevel.paper.fashion import FASHION
from bilevel.paper.letter import BATCHES, LETTER, TASKS
from bilevel.paper.sinusoids import FREQUENCIES, MORE_SINUSOIDS, SCRIPT_SINUSOIDS, SCRIPT_STEPS, SINUSOIDS
from bilevel.paper.variants import VARIANTS

ROUNDS = (10, 20, 40, 80)  # trials
Shorter = Callable[[Experiment], Experiment]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A sentence of the paper, in our words, and how it is tested.

    Args:
        figure: where the paper has it.
        text: what it says.
        experiments: whose runs are looked at.
        test: what these runs show.
        earlier: numbers of steps after which it is judged besides the whole run.
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
    """A claim, the variant and the horizon that it was tested at, and what came out."""

    claim: Claim
    variant: str
    horizon: int
    evidence: Evidence

    @property
    def open(self) -> bool:
        """Whether more trials could decide it."""
        return self.evidence.verdict == INCONCLUSIVE and self.evidence.trials < self.claim.most


def first_decision(look: Callable[[int], Evidence], most: int) -> Evidence:
    """What the first look that decides shows, or the last one; after the first, only whole rounds are looked at.

    More trials than a claim needed are there where they were made for another claim: they do not change its verdict.
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


def _lower(figure: str, experiment: Experiment, data: str) -> list[Claim]:
    """What is claimed of validation and test losses; judged after a tenth of the run too."""
    return [
        Claim(
            figure,
            f"min-max lowers the worst {kind} loss ({data})",
            (experiment,),
            evidence.lower(experiment, f"worst_{kind}"),
            (experiment.steps // 10,),
            headline=True,
        )
        for kind in ("validation", "test")
    ]


def _sinusoids(figure: str, experiment: Experiment, tasks: Sequence[str], headline: bool) -> list[Claim]:
    """What is claimed of seen and of unseen tasks; judged where the script ends too."""
    return [
        Claim(
            figure,
            f"min-max lowers the worst loss of {text}",
            (experiment,),
            evidence.lowest_lower(experiment, column),
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
    *_lower("1a", FASHION, "FashionMNIST"),
    Claim(
        "1b",
        "the squared gradient norm of batches falls like K^-2/5",
        (FASHION,),
        evidence.exponent_of_steps(FASHION, BATCH),
    ),
    Claim(
        "1b",
        "what Theorem 1 bounds (of the scripts: their direction on all data) falls like K^-2/5",
        (FASHION,),
        evidence.exponent_of_steps(FASHION, RESIDUAL),
    ),
    *_drawn("1c", 3, SINUSOIDS, headline=True),
    *_drawn("C.1", 20, MORE_SINUSOIDS, headline=False),
    *_sinusoids(
        "C.1", SCRIPT_SINUSOIDS, ["the script's own 20 seen sinusoids", "its 10 unseen sinusoids"], headline=False
    ),
    *_lower("2a", LETTER, "Letter"),
    Claim(
        "2b",
        "at fixed K the squared gradient norm of batches grows like sqrt(n)",
        _TASKS,
        evidence.exponent_of_tasks(TASKS, BATCH),
    ),
    Claim(
        "2b",
        "at fixed K what Theorem 1 bounds (of the scripts: their direction) grows like sqrt(n)",
        _TASKS,
        evidence.exponent_of_tasks(TASKS, RESIDUAL, measures.last),
    ),
    Claim(
        "2b",
        "what Theorem 1 bounds (of the scripts: their direction) falls like K^-2/5 (Letter)",
        (LETTER,),
        evidence.exponent_of_steps(LETTER, RESIDUAL),
    ),
    Claim(
        "2c",
        "larger batches make the worst test loss steadier",
        (BATCHES[8], BATCHES[128]),
        evidence.steadier(BATCHES[8], BATCHES[128]),
    ),
    Claim(
        "2c",
        "and reduce its variance over trials",
        (BATCHES[8], BATCHES[128]),
        evidence.spread_less(BATCHES[8], BATCHES[128]),
    ),
    Claim(
        "2c",
        "and bring it to a very similar level",
        (BATCHES[8], BATCHES[128]),
        evidence.same_level(BATCHES[8], BATCHES[128]),
    ),
)

HEAD = ("figure", "claim", "variant", "steps", "trials", "what we measured", "verdict")


def table(found: list[TestedClaim]) -> list[tuple[str, ...]]:
    """A row for each claim, variant and horizon; without those that were not run."""
    return [
        (
            *(f.claim.figure, f.claim.text, VARIANTS[f.variant], f"{f.horizon:,}"),
            *(str(f.evidence.trials), f.evidence.text, _verdict(f.evidence)),
        )
        for f in found
        if f.evidence.verdict != NONE
    ]


def _verdict(found: Evidence) -> str:
    """The verdict, and what an open claim would need."""
    return found.verdict if found.needed is None else f"{found.verdict}: about {found.needed:,} trials would decide"


def markdown(found: list[TestedClaim]) -> str:
    """The table for a page."""
    rows = [HEAD, ("---",) * len(HEAD), *table(found)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
