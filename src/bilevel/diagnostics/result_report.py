"""What is wrong with a finished run: all that its result shows, and whether y lags behind x.

A run is driven by the losses f_i(x, y_i) at the y_i that it has, not by l_i(x) = f_i(x, y_i*(x)). Where the lower
problems are far from solved, the two differ, and neither the history nor the iterates show it: the lower problems must
be solved further, with x fixed.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.rates import curvature
from bilevel.results.result import Result

LARGE_CHANGE = 0.2  # of the largest loss


def check_result(result: Result) -> list[str]:
    """What should be known about a run, each finding a sentence with a remedy; an empty list where nothing is wrong.

    The findings of `result.findings()` (cycling weights, forgotten tasks, a loss that rose, a noisy end), and a lower
    level that lags, for which a hundred more lower steps are computed. Of a loaded result, which has no problem to
    compute on, the findings are those that were saved.

    Args:
        result: what `bl.solve` returned.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> slow = bl.solve(known.problem, bl.MORBiT(0.05, 1e-4), known.x, steps=200, progress=False)
    >>> for sentence in bl.check_result(slow):
    ...     print(sentence)
    The lower level lags: a hundred more lower steps move the loss of task ... Give ... a larger lower_lr ...
    """
    if not isinstance(result, Result):
        raise TypeError(f"check_result(result=...) got {type(result).__name__}: it needs one bl.Result.")
    lag = lagging_lower_level(result)
    return result.findings() + ([] if lag is None else [lag])


def lagging_lower_level(result: Result) -> str | None:
    """Losses that change a lot when the lower problems are solved further with x fixed."""
    problem = result.problem
    if not isinstance(problem, Problem) or result.status == "diverged":  # loaded, or without a lower level
        return None
    after = np.asarray(_settled_losses(problem, result.x, PerTask(result.y.stacked), jax.random.key(0)))
    change = np.abs(after - result.losses)
    i = int(change.argmax())
    if change[i] <= LARGE_CHANGE * max(np.abs(result.losses).max(), np.abs(after).max()):
        return None
    more = "more lower_steps, " if hasattr(result.solver, "lower_steps") else ""
    return (
        f"The lower level lags: a hundred more lower steps move the loss of task {result.y.names[i]!r} from "
        f"{result.losses[i]:.4g} to {after[i]:.4g}. Give {more}a larger lower_lr or a smaller upper_lr."
    )


@jax.jit
def _settled_losses(problem: Problem, x: Any, y: PerTask[Any], key: jax.Array) -> jax.Array:
    """The losses after a hundred lower steps at measured rates, on large batches."""
    large = curvature.measuring(problem)
    known = curvature.condition(large, x, y, key, curvature.unmeasured(y), 20)
    return problem.validation_losses(x, curvature.settle(large, x, y, key, known, 100))
