"""Noise that a run ends in, or that its best iterate owes its loss to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bilevel.results.findings.curve import ENOUGH, curve, end_of, is_noisy, lowest_of, middle_of_three
from bilevel.results.findings.finding import Finding, finding
from bilevel.results.tail import in_words, of_distribution

if TYPE_CHECKING:
    from bilevel.results.result import Result

MUCH = 0.15  # the share of a loss by which a best iterate must differ to be worth a word


def noisy_end(result: Result) -> Finding | None:
    """A last iterate whose worst loss is, because of noise, well above that of the average one."""
    if result.problem is None or not result.problem.is_stochastic or result.status == "diverged":
        return None
    fraction = of_distribution(result.solver)
    last, average = (own.worst if fraction is None else own.tail(fraction) for own in (result.last, result.average))
    what = "worst loss" if fraction is None else in_words(fraction, "validation")
    if not last > average + 0.1 * abs(average):
        return None
    return finding(
        "noisy end",
        f"The last iterate is noisy (its {what} is {last:.4g}, that of the average iterate {average:.4g}): take "
        "result.average, or give larger batches or rates that decay.",
        last=last,
        average=average,
    )


def unsteady_end(result: Result) -> Finding | None:
    """A loss that goes up and down or has jumped, well above where it was, although every step sees all the data."""
    own = curve(result)
    if own is None or not _sees_everything(result) or result.status == "diverged":
        return None
    first = len(own.values) // 10  # before, y is on its way
    smooth = middle_of_three(own.values)[first:]
    at = first + int(smooth.argmin())
    lowest, rise = float(smooth.min()), own.level - float(smooth.min())
    jumped = at + 1 < len(own.values) and np.diff(own.values[at:]).max() > rise / 2  # between two evaluations
    if rise <= MUCH * abs(own.level) or not (jumped or is_noisy(own)):
        return None
    late, step = own.values[-max(5, len(own.values) // 4) :], int(result.history.step[at])
    return finding(
        "unsteady end",
        f"The {own.name} was {lowest:.4g} at step {step} and then jumped, although every step sees all the data: in "
        f"the last quarter of the evaluations it is between {late.min():.4g} and {late.max():.4g}. Steps are too long "
        "for where x has come: take result.best, give a smaller upper_lr, or keep x near with a constraint.",
        level=own.level,
        lowest=lowest,
        step=step,
    )


def lucky_best(result: Result) -> Finding | None:
    """A best iterate that is lower than the others by no more than these differ among themselves."""
    history, by = result.history, result.best_by
    if by == "last" or history.evaluations < ENOUGH or result.status == "diverged" or _sees_everything(result):
        return None
    if of_distribution(result.solver) is not None:  # the tasks and the rows of an evaluation are always the same
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


def _sees_everything(result: Result) -> bool:
    """Whether every step saw all rows of all tasks, so that nothing of the run is luck."""
    sampling = getattr(result.solver, "sampling", None)
    some = getattr(sampling, "draws", False) or getattr(sampling, "fresh", False)
    return result.problem is not None and not result.problem.is_stochastic and not some
