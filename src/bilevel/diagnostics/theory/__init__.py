"""What the paper proves, or claims, as numbers: step sizes, bounds, sample complexity, generalisation.

constants     the constants of the assumptions; `estimate_constants` measures them around a point
theorems      Theorem 1's rates and bounds, as claimed and as its argument gives them; Corollary 1; Propositions 1 to 3,
              and the Rademacher complexity they need

Rates and bounds are for the worst case: runs do far better, and `bl.solve` chooses better rates where none are given.
`bl.certify` measures the gaps themselves.

Reference: Gu, Lu, Ram, Weng, "Min-max multi-objective bilevel optimization with applications in robust machine
learning", ICLR 2023, Theorem 1, Corollary 1, and the appendices on convergence and generalisation.
"""

from bilevel.diagnostics.theory.constants import Constants, estimate_constants
from bilevel.diagnostics.theory.theorems import (
    Bounds,
    Complexity,
    Rademacher,
    Start,
    StepSizes,
    bounds,
    mended_bounds,
    morbit,
    rademacher_complexity,
    sample_complexity,
    seen_task_bound,
    series_terms,
    step_sizes,
    steps_for,
    unseen_task_bound,
    worst_task_bound,
)

__all__ = [
    "Bounds",
    "Complexity",
    "Constants",
    "Rademacher",
    "Start",
    "StepSizes",
    "bounds",
    "estimate_constants",
    "mended_bounds",
    "morbit",
    "rademacher_complexity",
    "sample_complexity",
    "seen_task_bound",
    "series_terms",
    "step_sizes",
    "steps_for",
    "unseen_task_bound",
    "worst_task_bound",
]
