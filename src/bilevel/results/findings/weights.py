"""Weights that cycle, have collapsed, do not move, or lie on tasks that are not the worst.

The remedy for a cycle is a smaller rate. With m the smallest curvature of the weighted upper objective, s the size of
the differences between the tasks' gradients and T the lag of y in steps, weights settle for rates below about
m / (s^2 (1 + T)), whatever the rate of x. Above it they enter a cycle in which every loss looks plausible.

At a solution of a min-max only the worst tasks have weights, so that the weighted loss is the worst loss. The
difference between the two is the theorem's gap of the weights, here at the y that the run has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.results.findings.finding import ENOUGH, Finding, compared, mean_and_error
from bilevel.results.findings.overfitting import overfitting
from bilevel.results.history import column_names
from bilevel.weightings.base import Wrapper
from bilevel.weightings.min_max import Exponentiated, SimplexAscent

if TYPE_CHECKING:
    from bilevel.results.result import Result

LAST = 0.5  # the fraction of a run that is examined
STILL = 0.05  # sum of |changes| over a run below which weights hardly move; from one task to another it is 2
APART = 0.1  # a gap is large if it is surely more than this share of the worst loss
ERRORS = 2.0  # standard errors of a gap
FORGETS = 0.25  # share of the end of a run: weights have collapsed if they rest on a wrong task for longer
AT_REST = 0.02  # sum of |changes| between two evaluations below which weights rest
HELD = 0.1  # a pull or floor above this is meant to hold weights back


class End(NamedTuple):
    """The last part of a run with moving weights."""

    weights: np.ndarray  # (evaluations, tasks)
    losses: np.ndarray
    travels: np.ndarray  # between evaluations
    swing: float


def _end(result: Result) -> End | None:
    history = result.history
    # Where only some tasks have columns, it is not known where the weight of the others went; and weights that are
    # solved for in each step have no rate and may jump.
    if history.tasks is not None or np.isnan(history.weights_rate[-1]):
        return None
    count = history.evaluations - int((1 - LAST) * history.evaluations)
    moves = history.weights.shape[1] > 1 and np.ptp(history.weights, axis=0).max() > 0
    if count < ENOUGH / 2 or not moves:
        return None
    weights = np.asarray(history.weights[-count:], float)
    swing = max(history.weights_swing[-count:].max(), np.ptp(weights, axis=0).max())
    travels = np.asarray(history.weights_travel[-count:], float)
    return End(weights, compared(result).values[-count:], travels, float(swing))


def cycling_weights(result: Result) -> Finding | None:
    """Weights that move a lot from step to step and end near where they began."""
    end = _end(result)
    if end is None:
        return None
    # Travel is counted step by step: at the evaluations alone a cycle may look constant.
    travel, progress = float(end.travels.sum()), np.abs(end.weights[-1] - end.weights[0]).sum()
    if not (travel > 3 and travel > 3 * progress and end.swing > 0.3):
        return None
    # The average iterate overfits as well.
    average = ", or take result.average" if overfitting(result) is None else ""
    return Finding.of(
        "cycling weights",
        f"The weights cycle (one of them swings by {end.swing:.2f}): give the weighting a smaller lr, or a pull to "
        f"uniform{average}.",
        swing=end.swing,
        travel=travel,
    )


def collapsed_weights(result: Result) -> Finding | None:
    """Weights that rest on one task for long while another is worse, and may then jump.

    Weights that move slowly from task to task are on a task that is not the worst for about half the time.
    """
    end = _end(result)
    if end is None or result.status == "diverged":
        return None
    heaviest, worst = end.weights.argmax(axis=1), end.losses.max(axis=1)
    alone = (end.weights.max(axis=1) > 0.99) & (end.travels < AT_REST)
    forgets = alone & (end.losses[np.arange(len(worst)), heaviest] < worst - 0.02 * np.abs(worst))
    if np.mean(forgets) <= FORGETS:
        return None
    last = np.flatnonzero(forgets)[-1]
    names = column_names(result.history, result.y.names)
    heavy, forgotten = (str(names[int(i)]) for i in (heaviest[last], end.losses[last].argmax()))
    return Finding.of(
        "collapsed weights",
        f"The weights have collapsed on task {heavy!r} while {forgotten!r} is worse: give the weighting a smaller lr "
        "or a floor, so that no task is forgotten.",
        task=heavy,
        worse=forgotten,
        share=float(np.mean(forgets)),
    )


def weights_off(result: Result) -> Finding | None:
    """Weights of a min-max that are on tasks far from the worst, or hardly moved although tasks differ."""
    own = compared(result)
    history, weighting = result.history, getattr(result.solver, "weighting", None)
    if history.evaluations < ENOUGH or result.status == "diverged" or not _seeks_the_worst(weighting):
        return None
    if own.values.shape[1] < 2 or not np.all(np.isfinite(own.values)):
        return None
    late = slice(-max(5, history.evaluations // 4), None)
    losses, weights, names = own.values[late], np.asarray(history.weights[late], float), result.y.names
    if history.tasks is not None:  # only some tasks have columns: take the last iterate, which has all
        losses, weights = (np.asarray(a, float)[None] for a in (result.last.losses, result.last.weights))
    i = int(losses.mean(axis=0).argmax())  # of mean losses: the worst of many noisy losses is above every mean
    gaps = losses[:, i] - np.sum(weights * losses, axis=1)
    gap, error = mean_and_error(gaps) if len(gaps) > 1 else (float(gaps[0]), 0.0)
    level = float(losses[:, i].mean())
    size = max(abs(level), float(np.abs(losses).max(axis=1).mean()))
    if gap - ERRORS * error <= APART * size:
        return None
    task, weight = str(names[i]), float(weights[-1, i])
    travel = float(np.nansum(history.weights_travel))
    if travel < STILL:
        kind = "weights do not move"
        words = (
            f"The weights hardly moved, although the worst {own.name} is {gap:.3g} above the weighted one: this was a "
            "min-avg in effect. Give the weighting a larger lr, or more steps."
        )
    else:
        kind = "weights off"
        words = (
            f"The weights are not those of a solution: the worst {own.name} (task {task!r}, weight {weight:.2g}) is "
            f"{gap:.3g} above the weighted one, and at a solution they are the same. Give more steps or a larger lr of "
            "the weighting, see what bl.certify says, and compare with weighting=bl.weightings.Average()."
        )
    return Finding.of(kind, words, travel=travel, gap=gap, error=error, worst=level, task=task, weight=weight)


def _seeks_the_worst(weighting: object) -> bool:
    """Whether the weighting ends with all weight on the worst tasks; others mean to spread it."""
    while isinstance(weighting, Wrapper):
        weighting = weighting.weighting
    if not isinstance(weighting, (SimplexAscent, Exponentiated)):
        return False
    return max(float(getattr(weighting, "pull", 0)), float(weighting.floor)) <= HELD
