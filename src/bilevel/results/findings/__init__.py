"""What a finished run shows that its user should know, each with a remedy.

All of it is computed from the history and the iterates, in numpy: printing a result compiles nothing. Whether y lags
behind x can only be found by solving the lower problems further, which `bilevel.check_result` does, and whether an
estimate of the hypergradient is biased by many estimates beside the truth (`bilevel.check_hypergradient`).

Thresholds were fixed on the runs that benchmarks/findings.py calls development, and are reported on others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bilevel.results.findings.convergence import rising_loss, still_falling
from bilevel.results.findings.finding import Finding
from bilevel.results.findings.motion import constant_losses, x_does_not_move
from bilevel.results.findings.noise import lucky_best, noisy_end, unsteady_end
from bilevel.results.findings.overfitting import overfitting
from bilevel.results.findings.weights import collapsed_weights, cycling_weights, weights_off

if TYPE_CHECKING:
    from bilevel.results.result import Result

CHECKS = (
    overfitting,
    constant_losses,
    x_does_not_move,
    cycling_weights,
    collapsed_weights,
    weights_off,
    rising_loss,
    still_falling,
    noisy_end,
    unsteady_end,
    lucky_best,
)
EXPLAINED_BY = {  # a finding that is but the consequence of another is left out beside it
    "rising loss": {"x does not move"},
    "weights off": {"cycling weights", "collapsed weights", "constant losses", "rising loss"},
    "still falling": {"rising loss", "x does not move"},
    "noisy end": {"overfitting"},  # the average iterate, too, has learnt the validation rows by heart
    "unsteady end": {"rising loss", "cycling weights"},
    "lucky best": {"rising loss", "cycling weights", "overfitting", "unsteady end"},
}


def found(result: Result) -> tuple[Finding, ...]:
    """All findings that need no computation on the problem; none where nothing is wrong."""
    own = [found for check in CHECKS if (found := check(result)) is not None]
    kinds = {found.kind for found in own}
    return tuple(found for found in own if not kinds & EXPLAINED_BY.get(found.kind, set()))
