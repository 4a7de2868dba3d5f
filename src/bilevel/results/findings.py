"""What a finished run shows that its user should know, each with a remedy.

    diverged           said by the run itself
    cycling weights    the weights circle instead of settling: their rate is above what the lag allows
    collapsed weights  one task has all the weight although another one is worse: the others were forgotten
    noisy end          batches are small: the average iterate is much better than the last
    rising loss        the run ended well above where it had been

All of these are computed from the history and the iterates, in numpy: printing a result compiles nothing. Whether y
lags behind x can only be found by solving the lower problems further, which `bilevel.check_result` does.

The stability rule behind the first remedy: with m the smallest curvature of the weighted upper objective, s the size of
the differences between the tasks' gradients and T the lag of y in steps, weights settle for rates below about
m / (s^2 (1 + T)), whatever the rate of x; above it they enter a cycle in which every loss looks plausible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bilevel.results.result import Result

LAST = 0.5  # the fraction of a run that is examined
ENOUGH = 20  # with fewer evaluations nothing is reported


def from_history(result: Result) -> list[str]:
    """All findings that need no computation on the problem, as sentences; none where nothing is wrong."""
    found = [check(result) for check in (cycling_weights, collapsed_weights, rising_loss, noisy_end)]
    return [sentence for sentence in found if sentence is not None]


def _end(result: Result) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights and validation losses along the last part of the run."""
    start = int((1 - LAST) * result.history.evaluations)
    weights, losses = result.history.weights[start:], result.history.validation[start:]
    moves = weights.shape[1] > 1 and np.ptp(result.history.weights, axis=0).max() > 0
    return (weights, losses) if len(weights) >= ENOUGH / 2 and moves else None


def cycling_weights(result: Result) -> str | None:
    """Weights that move a lot from step to step and end near where they began."""
    end = _end(result)
    if end is None:
        return None
    weights, _ = end
    # Step by step: a cycle whose period divides the time between evaluations looks constant at the evaluations.
    travel = result.history.weights_travel[-len(weights) :].sum()
    progress = np.abs(weights[-1] - weights[0]).sum()
    swing = max(result.history.weights_swing[-len(weights) :].max(), np.ptp(weights, axis=0).max())
    if travel > 3 and travel > 3 * progress and swing > 0.3:
        return (
            f"The weights cycle (one of them swings by {swing:.2f}): give the weighting a smaller lr, or a "
            "pull to uniform, or take result.average."
        )
    return None


def collapsed_weights(result: Result) -> str | None:
    """All weight on a task that is not the worst."""
    end = _end(result)
    if end is None:
        return None
    weights, losses = end
    heaviest = weights.argmax(axis=1)
    alone = weights.max(axis=1) > 0.99
    better = losses[np.arange(len(losses)), heaviest] < losses.max(axis=1) - 0.02 * np.abs(losses.max(axis=1))
    if np.mean(alone & better) > 0.5:
        last = np.flatnonzero(alone & better)[-1]
        heavy, worst = (result.y.names[int(i)] for i in (heaviest[last], losses[last].argmax()))
        return (
            f"The weights have collapsed on task {heavy!r} while {worst!r} is worse: give the weighting a smaller lr "
            "or a floor, so that no task is forgotten."
        )
    return None


def rising_loss(result: Result) -> str | None:
    """A last iterate well above the best one, where the end of the run does not even oscillate around it."""
    worst = result.history.worst
    if len(worst) < ENOUGH or result.status == "diverged" or not getattr(result.problem, "comparable_losses", True):
        return None
    best, late = worst.min(), np.median(worst[-len(worst) // 5 :])
    if late > best + 0.5 * max(abs(best), worst[0] - best):
        return (
            f"The worst loss rose to {late:.4g} after {best:.4g} at step {result.history.step[worst.argmin()]}: take "
            "result.best, or give a smaller upper_lr or a larger batch."
        )
    return None


def noisy_end(result: Result) -> str | None:
    """A last iterate whose worst loss is, because of noise, well above that of the average one."""
    if result.problem is None or not result.problem.is_stochastic or result.status == "diverged":
        return None
    last, average = result.last.worst, result.average.worst
    if last > average + 0.1 * abs(average):
        return (
            f"The last iterate is noisy (its worst loss is {last:.4g}, that of the average iterate {average:.4g}): "
            "take result.average, or give larger batches or rates that decay."
        )
    return None
