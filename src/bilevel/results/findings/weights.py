"""Weights that circle, have collapsed, do not move, or lie on tasks that are not the worst.

The stability rule behind the first remedy: with m the smallest curvature of the weighted upper objective, s the size of
the differences between the tasks' gradients and T the lag of y in steps, weights settle for rates below about
m / (s^2 (1 + T)), whatever the rate of x; above it they enter a cycle in which every loss looks plausible.

At a solution of a min-max only tasks that are the worst have weights, so that the weighted loss is the worst loss. What
is between the two is the gap of the weights in the theorem, here at the y that the run has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bilevel.results.findings.curve import ENOUGH, compared, mean_and_error
from bilevel.results.findings.finding import Finding, finding
from bilevel.results.findings.overfitting import overfitting
from bilevel.results.history import column_names
from bilevel.weightings.exponentiated import Exponentiated
from bilevel.weightings.simplex_ascent import SimplexAscent
from bilevel.weightings.wrapper import Wrapper

if TYPE_CHECKING:
    from bilevel.results.result import Result

LAST = 0.5  # the fraction of a run that is examined
STILL = 0.05  # sum of |changes| over a run, of weights that hardly move; from one task to another it is 2
APART = 0.1  # a gap is large where it is surely more than this share of the worst loss
ERRORS = 2.0  # standard errors of a gap
FORGETS = 0.25  # of the end of a run: for so long, in a collapse, all weight rests on a task that is not the worst
AT_REST = 0.02  # sum of |changes| between two evaluations, of weights that rest
HELD = 0.1  # a pull or floor above this holds weights back as its user wishes


class End(NamedTuple):
    """The last part of a run whose weights move."""

    weights: np.ndarray  # (evaluations, tasks)
    losses: np.ndarray
    travels: np.ndarray  # between evaluations
    swing: float

    @property
    def travel(self) -> float:
        """All in all."""
        return float(self.travels.sum())


def _end(result: Result) -> End | None:
    history = result.history
    if history.tasks is not None:  # of some of the tasks: where the weight of the others went is not known
        return None
    if np.isnan(history.weights_rate[-1]):  # weights without a rate, of a program that each step solves, may jump
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
    # Step by step: a cycle whose period divides the time between evaluations looks constant at the evaluations.
    progress = np.abs(end.weights[-1] - end.weights[0]).sum()
    if not (end.travel > 3 and end.travel > 3 * progress and end.swing > 0.3):
        return None
    # The average iterate, too, has learnt the validation rows by heart.
    average = ", or take result.average" if overfitting(result) is None else ""
    return finding(
        "cycling weights",
        f"The weights cycle (one of them swings by {end.swing:.2f}): give the weighting a smaller lr, or a pull to "
        f"uniform{average}.",
        swing=end.swing,
        travel=end.travel,
    )


def collapsed_weights(result: Result) -> Finding | None:
    """All weight that rests, for long, on a task that is not the worst; then it may jump to another.

    Where it goes round among tasks slowly, a task has it, on average, for half the time in vain.
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
    return finding(
        "collapsed weights",
        f"The weights have collapsed on task {heavy!r} while {forgotten!r} is worse: give the weighting a smaller lr "
        "or a floor, so that no task is forgotten.",
        task=heavy,
        worse=forgotten,
        share=float(np.mean(forgets)),
    )


def weights_off(result: Result) -> Finding | None:
    """Weights of a min-max on tasks that are far from the worst, or that hardly moved although tasks differ."""
    own = compared(result)
    history, weighting = result.history, getattr(result.solver, "weighting", None)
    if history.evaluations < ENOUGH or result.status == "diverged" or not _seeks_the_worst(weighting):
        return None
    if own.values.shape[1] < 2 or not np.all(np.isfinite(own.values)):
        return None
    late = slice(-max(5, history.evaluations // 4), None)
    losses, weights, names = own.values[late], np.asarray(history.weights[late], float), result.y.names
    if history.tasks is not None:  # of some of the tasks: the end, of which all are known
        losses, weights = (np.asarray(a, float)[None] for a in (result.last.losses, result.last.weights))
    i = int(losses.mean(axis=0).argmax())  # by means, as the worst of many noisy losses is above each of theirs
    gaps = losses[:, i] - np.sum(weights * losses, axis=1)
    gap, error = mean_and_error(gaps) if len(gaps) > 1 else (float(gaps[0]), 0.0)
    level = float(losses[:, i].mean())
    size = max(abs(level), float(np.abs(losses).max(axis=1).mean()))
    if gap - ERRORS * error <= APART * size:
        return None
    task, weight = str(names[i]), float(weights[-1, i])
    numbers = {"gap": gap, "error": error, "worst": level, "task": task, "weight": weight}
    travel = float(np.nansum(history.weights_travel))
    if travel < STILL:
        return finding(
            "weights do not move",
            f"The weights hardly moved, although the worst {own.name} is {gap:.3g} above the weighted one: this was a "
            "min-avg in effect. Give the weighting a larger lr, or more steps.",
            travel=travel,
            **numbers,
        )
    return finding(
        "weights off",
        f"The weights are not those of a solution: the worst {own.name} (task {task!r}, weight {weight:.2g}) is "
        f"{gap:.3g} above the weighted one, and at a solution they are the same. Give more steps or a larger lr of the "
        "weighting, see what bl.certify says, and compare with weighting=bl.weightings.Average().",
        travel=travel,
        **numbers,
    )


def _seeks_the_worst(weighting: object) -> bool:
    """Whether it puts all weight on the worst tasks in the end; others mean to spread it."""
    while isinstance(weighting, Wrapper):
        weighting = weighting.weighting
    if not isinstance(weighting, (SimplexAscent, Exponentiated)):
        return False
    return max(float(getattr(weighting, "pull", 0)), float(weighting.floor)) <= HELD
