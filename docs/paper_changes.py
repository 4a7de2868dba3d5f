"""Verdicts of an earlier page that are others now, and why."""

from __future__ import annotations

from collections.abc import Sequence

from bilevel.studies.paper.claims import NONE, TestedClaim
from bilevel.studies.paper.experiments import VARIANTS
from bilevel.studies.statistics import HOLDS, INCONCLUSIVE, REFUTED

_ORDER = ("described", "published", "ours")
# What the page said when "published" was a direction without an implicit term and none of the scripts' other parts.
EARLIER = {
    "min-max lowers the worst validation loss (FashionMNIST)": (HOLDS, HOLDS, HOLDS),
    "min-max lowers the worst test loss (FashionMNIST)": (INCONCLUSIVE, HOLDS, HOLDS),
    "the squared gradient norm of batches falls like K^-2/5": (REFUTED, REFUTED, REFUTED),
    "min-max lowers the worst loss of 3 seen sinusoids, frequencies 1 to 3": (INCONCLUSIVE, REFUTED, REFUTED),
    "min-max lowers the worst loss of 3 unseen sinusoids, frequencies 1 to 3": (INCONCLUSIVE,) * 3,
    "min-max lowers the worst loss of 20 seen sinusoids, frequencies 1 to 3": (INCONCLUSIVE, INCONCLUSIVE, REFUTED),
    "min-max lowers the worst loss of 20 unseen sinusoids, frequencies 1 to 3": (INCONCLUSIVE, INCONCLUSIVE, REFUTED),
    "min-max lowers the worst validation loss (Letter)": (INCONCLUSIVE, INCONCLUSIVE, HOLDS),
    "min-max lowers the worst test loss (Letter)": (INCONCLUSIVE,) * 3,
    "at fixed K the squared gradient norm of batches grows like sqrt(n)": (INCONCLUSIVE,) * 3,
    "larger batches make the worst test loss steadier": (HOLDS, HOLDS, HOLDS),
    "and bring it to a very similar level": (HOLDS, HOLDS, INCONCLUSIVE),
}
SCRIPTS = "the scripts had not been run as they are: momentum, heads, losses, plateaus"
HORIZON = "judged where the script ends (6,000 steps instead of 20,000), intervals of four looks"
RULE = "the same runs or more of them, by a rule that says which gain must be excluded, intervals of four looks"

DIVERGED = "a trial diverged: the estimator is unbiased now, and less stable at the rates that were chosen before"


def changed(found: list[TestedClaim]) -> list[Sequence[str]]:
    """Rows of claim, variant, verdict then, verdict now, why; of the whole run."""
    now = {(t.claim.text, t.variant): t for t in found if t.horizon == t.claim.horizons[-1]}
    rows = []
    for text, verdicts in EARLIER.items():
        for variant, then in zip(_ORDER, verdicts, strict=True):
            tested = now[text, variant]
            verdict = tested.evidence.verdict
            if verdict in (then, NONE):
                continue
            why = SCRIPTS if variant == "published" else HORIZON if "20" in text else RULE
            why = DIVERGED if "diverged" in tested.evidence.text else why
            rows.append([tested.claim.figure, text, VARIANTS[variant], then, verdict, why])
    return rows
