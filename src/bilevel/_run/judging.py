"""What makes one iterate of a run better than another."""

from __future__ import annotations

import numpy as np

from bilevel._run.reached import Evaluated, Row
from bilevel._run.run import Run
from bilevel.results.history import in_words, of_distribution, tail_mean


def score(run: Run, evaluated: Row | Evaluated) -> float:
    """The lower, the better: the worst loss, or of tasks from a distribution what is minimised."""
    fraction = of_distribution(run.solver)
    if fraction is None:
        return evaluated.chosen_by
    losses = evaluated.validation if evaluated.selection is None else evaluated.selection
    return tail_mean(np.where(np.isnan(losses), np.inf, losses), fraction)


def judged_by(run: Run) -> str:
    """The same in words."""
    fraction = of_distribution(run.solver)
    return f"worst {run.best_by} loss" if fraction is None else in_words(fraction, run.best_by)
