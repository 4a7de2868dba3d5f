"""A loss that is low on the rows that x was fitted to, and on others is not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bilevel.results.findings.curve import ENOUGH, middle_of_three
from bilevel.results.findings.finding import Finding
from bilevel.results.history import column_names

if TYPE_CHECKING:
    from bilevel.results.result import Result

TIMES = 1.5  # far above: so many times the loss on validation rows, if the gap is also
SHARE = 0.05  # this share of what was gained there; or
NOT_GAINED = 0.3  # this share alone
CHANCE = 0.01  # of so many tasks that are worse on other rows, if rows were all that differ
ERRORS = 2.5  # standard errors of the gap
SPREAD = 3.0  # a row's loss deviates by about so many mean losses where few rows make most of it; theirs are not kept
RISE = 0.1  # a loss has risen where it has by this share of what it had gained, and
RISE_OF_LOSS = 0.1  # by this share of itself, and
RISE_OF_NOISE = 3.0  # by so many standard deviations of its last evaluations, and
RISE_OF_ROWS = 1.5  # by so many times what a loss is over the square root of its rows: the lowest of many is also luck
CONVERGED = 5  # evaluations are enough of a run that converged: its end is known, not guessed from a curve
ADVICE = (  # as docs/when-it-pays.md has measured it
    "Compare with weighting=bl.weightings.Average(): with 20 rows a task min-max was not better than min-avg on new "
    "rows, and with 100 only where x was too narrow for all tasks."
)


class HeldOut(NamedTuple):
    """Losses on the rows that x was fitted to, and on others, at every evaluation."""

    seen: np.ndarray
    other: np.ndarray
    role: str  # of the others


def held_out(result: Result) -> HeldOut | None:
    """Selection losses beside validation losses, or test losses; None where they say nothing of overfitting."""
    history = result.history
    role = "selection" if history.selection is not None else "test"
    losses = history.selection if role == "selection" else history.test
    enough = ENOUGH if result.status != "converged" else CONVERGED
    if losses is None or history.evaluations < enough or result.status == "diverged" or not result.fits_validation:
        return None
    own = HeldOut(np.asarray(history.validation, float), np.asarray(losses, float), role)
    return own if np.all(np.isfinite(own.seen)) and np.all(np.isfinite(own.other)) else None


def overfitting(result: Result) -> Finding | None:
    """The worst selection loss, or test loss without selection rows, far above the validation loss or rising."""
    own = held_out(result)
    if own is None:
        return None
    rows = (_rows(result, "validation"), _rows(result, own.role))
    count = None if rows[1] is None else float(rows[1][own.other[-1].argmax()])
    best = risen_since(own.seen.max(axis=1), own.other.max(axis=1), count)
    if best is None and not (_is_far(own.seen, own.other) and _beyond_noise(own.seen[-1], own.other[-1], rows)):
        return None
    return _told(result, own.role, own.other, best)


def _is_far(seen: np.ndarray, other: np.ndarray) -> bool:
    """Whether the worst loss on other rows is far above that on the rows that x was fitted to."""
    now, there = seen[-1].max(), other[-1].max()
    gained = max(0.0, seen[0].max() - now)
    gap = there - now
    return gap > NOT_GAINED * gained or (there > TIMES * now and gap > SHARE * gained)


def _beyond_noise(seen: np.ndarray, other: np.ndarray, rows: tuple[np.ndarray | None, np.ndarray | None]) -> bool:
    """Whether rows alone would hardly make such a gap: too many tasks have one, or its error is small.

    Tasks have rows of their own, so that without overfitting as many are better on other rows as are worse, and by as
    much.

    Reference: Wilcoxon, "Individual comparisons by ranking methods", 1945.
    """
    from scipy.stats import wilcoxon  # here, as importing bilevel is to stay fast

    gaps = other - seen
    some = gaps[gaps != 0]
    ranked: Any = wilcoxon(some, alternative="greater") if len(some) else None
    if ranked is not None and ranked.pvalue < CHANCE:  # by signs and sizes
        return True
    if rows[0] is None or rows[1] is None:
        return False
    i = int(other.argmax())
    error = SPREAD * math.hypot(seen[i] / math.sqrt(rows[0][i]), other[i] / math.sqrt(rows[1][i]))
    return bool(gaps[i] > ERRORS * error)


def _rows(result: Result, role: str) -> np.ndarray | None:
    """How many rows each task has; None where that is not known."""
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
    """The evaluation from which on the loss on other rows rose while that on validation rows did not; None = never.

    `rows` is how many of them make the loss of the worst task; None = not known.
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


def _told(result: Result, role: str, other: np.ndarray, best: int | None) -> Finding:
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
    lower = min(there - 0.02 * abs(there), float(other[0].max()))  # as otherwise the best is the start
    if role == "selection" and chosen is not None and chosen < lower:
        remedy = f"take result.best, which selection rows have chosen (it has {chosen:.4g} there)"
        numbers["best"] = chosen
    elif role == "test":  # which are to choose nothing, not even the number of steps
        remedy = "give selection rows (bl.split), by which result.best is then chosen"
    elif best:
        remedy = f"give about {history.step[best]} steps"
    else:
        remedy = "give more validation rows (bl.cross_fit lets every row validate)"
    words += f" {remedy[0].upper()}{remedy[1:]}, or a smaller or penalised x."
    if np.ptp(history.weights, axis=0).max() > 0:
        words += f" {ADVICE}"
    return Finding("overfitting", words, numbers)
