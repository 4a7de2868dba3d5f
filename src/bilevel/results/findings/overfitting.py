"""Overfitting: a loss that is low on the rows that x was fitted to, and not on others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel.results.findings.finding import ENOUGH, Finding, middle_of_three
from bilevel.results.history import column_names

if TYPE_CHECKING:
    from bilevel.results.result import Result

# The loss on other rows is far above that on validation rows if the gap is `NOT_GAINED` of what was gained there, or if
# it is `TIMES` as large and the gap is `SHARE` of the gain.
TIMES, SHARE, NOT_GAINED = 1.5, 0.05, 0.3
CHANCE = 0.01  # p-value of the test whether too many tasks are worse on other rows
ERRORS = 2.5  # standard errors above which a gap is no noise
SPREAD = 3.0  # assumed standard deviation of a row's loss, in mean losses: losses row by row are not kept
# A loss has risen if the rise exceeds all of these: shares of what it had gained and of itself, standard deviations of
# its last evaluations, and multiples of loss / sqrt(rows), since the lowest of many evaluations is also luck.
RISE, RISE_OF_LOSS, RISE_OF_NOISE, RISE_OF_ROWS = 0.1, 0.1, 3.0, 1.5
CONVERGED = 5  # evaluations that a converged run needs: its end is known, not guessed from a curve
ADVICE = (  # as docs/when-it-pays.md has measured it
    "Compare with weighting=bl.weightings.Average(): with 20 rows a task min-max was not better than min-avg on new "
    "rows, and with 100 only where x was too narrow for all tasks."
)


class HeldOut(NamedTuple):
    """Losses at every evaluation on the rows that x was fitted to, and on others."""

    seen: np.ndarray
    other: np.ndarray
    role: str  # of the other rows


def held_out(result: Result) -> HeldOut | None:
    """Validation losses beside selection or else test losses; None if they say nothing about overfitting."""
    history = result.history
    role = "selection" if history.selection is not None else "test"
    losses = history.selection if role == "selection" else history.test
    enough = ENOUGH if result.status != "converged" else CONVERGED
    if losses is None or history.evaluations < enough or result.status == "diverged" or not result.fits_validation:
        return None
    own = HeldOut(np.asarray(history.validation, float), np.asarray(losses, float), role)
    return own if np.all(np.isfinite(own.seen)) and np.all(np.isfinite(own.other)) else None


def overfitting(result: Result) -> Finding | None:
    """Finds a worst selection loss (or else test loss) that is far above the validation loss, or rises."""
    own = held_out(result)
    if own is None:
        return None
    rows = (_rows(result, "validation"), _rows(result, own.role))
    count = None if rows[1] is None else float(rows[1][own.other[-1].argmax()])
    best = risen_since(own.seen.max(axis=1), own.other.max(axis=1), count)
    if best is None and not (_is_far(own.seen, own.other) and _beyond_noise(own.seen[-1], own.other[-1], rows)):
        return None
    return _describe(result, own.role, own.other, best)


def _is_far(seen: np.ndarray, other: np.ndarray) -> bool:
    """Whether the worst loss on other rows is far above that on the rows that x was fitted to."""
    now, there = seen[-1].max(), other[-1].max()
    gained = max(0.0, seen[0].max() - now)
    gap = there - now
    return gap > NOT_GAINED * gained or (there > TIMES * now and gap > SHARE * gained)


def _beyond_noise(seen: np.ndarray, other: np.ndarray, rows: tuple[np.ndarray | None, np.ndarray | None]) -> bool:
    """Whether chance is unlikely to make such a gap: too many tasks have one, or its standard error is small.

    Tasks have rows of their own. Without overfitting as many tasks are better on other rows as are worse, and by as
    much.

    Reference: Wilcoxon, "Individual comparisons by ranking methods", 1945.
    """
    from scipy.stats import wilcoxon  # imported here, so that importing bilevel stays fast

    gaps = other - seen
    some = gaps[gaps != 0]
    ranked: Any = wilcoxon(some, alternative="greater") if len(some) else None
    if ranked is not None and ranked.pvalue < CHANCE:  # tests signs and sizes
        return True
    if rows[0] is None or rows[1] is None:
        return False
    i = int(other.argmax())
    error = SPREAD * math.hypot(seen[i] / math.sqrt(rows[0][i]), other[i] / math.sqrt(rows[1][i]))
    return bool(gaps[i] > ERRORS * error)


def _rows(result: Result, role: str) -> np.ndarray | None:
    """The number of rows of each task; None if it is not known."""
    if result.problem is None:
        return None
    counts = np.ones(len(result.y))
    for group in result.problem.groups:
        source = getattr(group, role)
        if source is None or not source.finite:
            return None
        counts[np.asarray(group.ids)] = np.asarray(source.rows)
    return np.maximum(counts, 1)


def risen_since(seen: np.ndarray, other: np.ndarray, rows: float | None = None) -> int | None:
    """The evaluation after which the loss on other rows rose and that on validation rows did not; None = never.

    `rows` is the number of rows behind the worst task's loss; None = not known.
    """
    smooth = middle_of_three(other)
    best = int(smooth.argmin())
    end, lowest = other[-max(3, len(other) // 5) :], smooth[best]
    rise = float(np.median(end)) - lowest
    gained = max(0.0, other[0] - lowest)
    fell = np.median(seen[-len(end) :]) <= seen[best] + 0.01 * abs(seen[best])
    by_luck = 0.0 if rows is None else RISE_OF_ROWS * abs(lowest) / math.sqrt(rows)
    least = max(RISE * gained, RISE_OF_LOSS * abs(lowest), RISE_OF_NOISE * float(np.std(end)), by_luck)
    large = rise > least
    return best if large and fell and best < len(other) - len(end) else None


def _describe(result: Result, role: str, other: np.ndarray, best: int | None) -> Finding:
    history = result.history
    now, there = float(result.last.worst), float(other[-1].max())
    task = str(column_names(result.history, result.y.names)[int(other[-1].argmax())])
    words = f"Overfitting: the worst {role} loss is {there:.4g} (task {task!r}), the worst validation loss {now:.4g}."
    numbers = {"validation": now, role: there, "task": task}
    if result.last.test_worst_task is not None:
        numbers["worst test task"] = str(result.last.test_worst_task)
        if role != "test":
            words = words[:-1] + f"; on test rows the worst task is {result.last.test_worst_task!r}."
    if best is not None:
        step, lowest = int(history.step[best]), float(other[best].max())
        words += f" It was {lowest:.4g} at step {step} and has risen since"
        words += "." if best else ": what x learnt is of no use on other rows."
        numbers |= {"began at step": step, "lowest": lowest}
    chosen = result.best.selection_worst
    lower = min(there - 0.02 * abs(there), float(other[0].max()))  # otherwise the best is the start
    if role == "selection" and chosen is not None and chosen < lower:
        remedy = f"take result.best, which selection rows have chosen (it has {chosen:.4g} there)"
        numbers["best"] = chosen
    elif role == "test":  # test rows must choose nothing, not even the number of steps
        remedy = "give selection rows (bl.split), by which result.best is then chosen"
    elif best:
        remedy = f"give about {history.step[best]} steps"
    else:
        remedy = "give more validation rows (bl.cross_fit lets every row validate)"
    words += f" {remedy[0].upper()}{remedy[1:]}, or a smaller or penalised x."
    if np.ptp(history.weights, axis=0).max() > 0:
        words += f" {ADVICE}"
    return Finding("overfitting", words, numbers)
