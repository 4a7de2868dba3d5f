"""Findings of a finished run: what its user should know, each with a remedy.

They are computed in numpy from the history and the iterates, so that printing a result compiles nothing. Two questions
need computation on the problem: whether y lags behind x (`bilevel.check_result`), and whether an estimate of the
hypergradient is biased (`bilevel.check_hypergradient`).

Thresholds were fixed on the development runs of benchmarks/findings.py, which reports how they do on others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilevel.results.findings import convergence, overfitting, weights
from bilevel.results.findings.finding import Finding

if TYPE_CHECKING:
    from bilevel.results.result import Result

CHECKS = (
    overfitting.overfitting,
    convergence.constant_losses,
    convergence.x_does_not_move,
    weights.cycling_weights,
    weights.collapsed_weights,
    weights.weights_off,
    convergence.rising_loss,
    convergence.still_falling,
    convergence.noisy_end,
    convergence.unsteady_end,
    convergence.lucky_best,
)
EXPLAINED_BY = {  # a finding that only follows from another is left out
    "rising loss": {"x does not move"},
    "weights off": {"cycling weights", "collapsed weights", "constant losses", "rising loss"},
    "still falling": {"rising loss", "x does not move"},
    "noisy end": {"overfitting"},  # the average iterate has overfitted as well
    "unsteady end": {"rising loss", "cycling weights"},
    "lucky best": {"rising loss", "cycling weights", "overfitting", "unsteady end"},
}


def found(result: Result) -> tuple[Finding, ...]:
    """All findings that need no computation on the problem; empty where nothing is wrong."""
    own = [found for check in CHECKS if (found := check(result)) is not None]
    kinds = {found.kind for found in own}
    return tuple(found for found in own if not kinds & EXPLAINED_BY.get(found.kind, set()))
