"""Noise that a run ends in, or that its best iterate owes its loss to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bilevel.results.findings.curve import ENOUGH, end_of, lowest_of
from bilevel.results.findings.finding import Finding, finding

if TYPE_CHECKING:
    from bilevel.results.result import Result

MUCH = 0.15  # the share of a loss by which a best iterate must differ to be worth a word


def noisy_end(result: Result) -> Finding | None:
    """A last iterate whose worst loss is, because of noise, well above that of the average one."""
    if result.problem is None or not result.problem.is_stochastic or result.status == "diverged":
        return None
    last, average = result.last.worst, result.average.worst
    if not last > average + 0.1 * abs(average):
        return None
    return finding(
        "noisy end",
        f"The last iterate is noisy (its worst loss is {last:.4g}, that of the average iterate {average:.4g}): take "
        "result.average, or give larger batches or rates that decay.",
        last=last,
        average=average,
    )


def lucky_best(result: Result) -> Finding | None:
    """A best iterate that is lower than the others by no more than these differ among themselves."""
    history, by = result.history, result.best_by
    if by == "last" or history.evaluations < ENOUGH or result.status == "diverged":
        return None
    column = history.worst if by == "validation" else history.selection_worst
    if column is None or not np.all(np.isfinite(column)):
        return None
    (level, noise), best = end_of(column), float(column.min())
    if level - best <= MUCH * abs(level) or level - best > lowest_of(history.evaluations) * noise:
        return None
    return finding(
        "lucky best",
        f"That result.best has a worst {by} loss of {best:.4g} is luck: it is the lowest of {history.evaluations} "
        f"noisy evaluations, and the last of them are {level:.4g} ± {noise:.2g}. Take result.average, or give larger "
        "batches or rates that decay.",
        best=best,
        level=level,
        noise=noise,
    )
