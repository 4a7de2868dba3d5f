"""What a finished run shows that its user should know, each with a remedy.

    diverged           said by the run itself
    cycling weights    the weights go round and round instead of settling: their rate is above what the lag allows
    collapsed weights  one task has all the weight although another one is worse: the others were forgotten
    noisy end          batches are small: the average iterate is much better than the last
    lagging y          the lower problems are far from solved, so that the losses that steer the run are not l_i(x)
    rising loss        the run ended well above where it had been

The stability rule behind the first remedy: with m the smallest curvature of the weighted upper objective, s the size of
the differences between the tasks' gradients and T the lag of y in steps, weights settle for rates below about
m / (s^2 (1 + T)), whatever the rate of x; above it they enter a cycle in which every loss looks plausible.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bilevel.problem.problem import Problem
from bilevel.rates import curvature

Result = Any  # of `bilevel.result`, which asks here

LAST = 0.5  # the part of a run that is looked at
ENOUGH = 20  # evaluations without which nothing is said


def findings(result: Result) -> list[str]:
    """Sentences; none where nothing is wrong."""
    looks = (cycling_weights, collapsed_weights, rising_loss, noisy_end, lagging_lower_level)
    found = [look(result) for look in looks]
    return [sentence for sentence in found if sentence is not None]


def _end(result: Result) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights and validation losses along the last part of the run."""
    start = int((1 - LAST) * len(result.history))
    weights, losses = result.history.weights[start:], result.history.validation[start:]
    moves = weights.shape[1] > 1 and np.ptp(result.history.weights, axis=0).max() > 0
    return (weights, losses) if len(weights) >= ENOUGH / 2 and moves else None


def cycling_weights(result: Result) -> str | None:
    """Weights that travel far and arrive nowhere."""
    end = _end(result)
    if end is None:
        return None
    weights, _ = end
    # By the step, not by the evaluation: a cycle whose period divides the time between evaluations looks like rest.
    travelled = result.history.weights_travel[-len(weights) :].sum()
    arrived = np.abs(weights[-1] - weights[0]).sum()
    swing = max(result.history.weights_swing[-len(weights) :].max(), np.ptp(weights, axis=0).max())
    if travelled > 3 and travelled > 3 * arrived and swing > 0.3:
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
    if len(worst) < ENOUGH or result.status == "diverged" or not getattr(result.problem, "ranks", True):
        return None
    best, late = worst.min(), np.median(worst[-len(worst) // 5 :])
    if late > best + 0.5 * max(abs(best), worst[0] - best):
        return (
            f"The worst loss rose to {late:.4g} after {best:.4g} at step {result.history.step[worst.argmin()]}: take "
            "result.best, or give a smaller upper_lr or a larger batch."
        )
    return None


def noisy_end(result: Result) -> str | None:
    """A last iterate that noise has thrown well above the average one."""
    if result.problem is None or not result.problem.draws or result.status == "diverged":
        return None
    last, average = result.last.worst, result.average.worst
    if last > average + 0.1 * abs(average):
        return (
            f"The last iterate is noisy (worst loss {last:.4g}, on average {average:.4g}): take result.average, or "
            "give larger batches or rates that decay."
        )
    return None


@jax.jit
def _settled_losses(problem: Problem, x: Any, y: tuple, key: jax.Array) -> jax.Array:
    """The losses after a hundred careful lower steps on large batches."""
    large = curvature.measuring(problem)
    known = curvature.condition(large, x, y, key, curvature.unmeasured(y), 20)
    return problem.validation_losses(x, curvature.settle(large, x, y, key, known, 100))


def lagging_lower_level(result: Result) -> str | None:
    """Losses that fall or rise a lot when the lower problems are solved further with x held still."""
    problem = result.problem
    if not isinstance(problem, Problem) or result.status == "diverged":  # loaded, or without a lower level
        return None
    after = np.asarray(_settled_losses(problem, result.x, result.y.stacked, jax.random.key(0)))
    change = np.abs(after - result.losses)
    scale = max(np.abs(result.losses).max(), np.abs(after).max())
    i = int(change.argmax())
    if change[i] > 0.2 * scale:
        more = "more lower_steps, " if hasattr(result.solver, "lower_steps") else ""
        return (
            f"The lower level lags: a hundred more lower steps move the loss of task {result.y.names[i]!r} from "
            f"{result.losses[i]:.4g} to {after[i]:.4g}. Give {more}a larger lower_lr or a smaller upper_lr."
        )
    return None
