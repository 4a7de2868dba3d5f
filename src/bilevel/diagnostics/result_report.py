"""What is wrong with a finished run: all that its result shows, and whether y lags behind x.

A run is driven by the losses f_i(x, y_i) at the y_i that it has, not by l_i(x) = f_i(x, y_i*(x)). Where the lower
problems are far from solved, the two differ, and neither the history nor the iterates show it: the lower problems must
be solved further, with x fixed.

Where a loss is still falling, or goes up and down, y is on its way too, and more steps or less noise settle both. A lag
is what is wrong where the steps of y are much shorter than they could be, or where all else has settled.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.rates import curvature
from bilevel.results.findings.finding import Finding, finding
from bilevel.results.result import Result

LARGE_CHANGE = 0.2  # of the worst loss
SHARES = (1.0, 1 / 8, 1 / 64)  # of the rates that the curvature here allows: on the way to y* it may be larger
SLOW = 0.2  # a rate of y below this share of 1 / L_i is the cause of a lag
AT_REST = ("settled", "not known")  # verdicts of runs in which nothing else moves y


def check_result(result: Result) -> tuple[Finding, ...]:
    """What should be known about a run, each finding a sentence with a remedy; none where nothing is wrong.

    The findings of `result.findings`, and a lower level that lags, for which a hundred more lower steps are computed.
    It is reported where it is the cause: where the rate of y is far below what its curvature allows, or where the loss
    has settled and y has not. Of a loaded result, which has no problem to compute on, the findings are those that were
    saved.

    Args:
        result: what `bl.solve` returned.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> slow = bl.solve(known.problem, bl.MORBiT(0.05, 1e-4), known.x, steps=200, progress=False, fitted=False)
    >>> print(bl.check_result(slow)[-1])
    The lower level lags: a hundred more lower steps move the loss of task ... Give a larger lower_lr ...
    """
    if not isinstance(result, Result):
        raise TypeError(f"check_result(result=...) got {type(result).__name__}: it needs one bl.Result.")
    lag = lagging_lower_level(result)
    return result.findings if lag is None else (*result.findings, lag)


def lagging_lower_level(result: Result) -> Finding | None:
    """The loss of a worst task that changes a lot when y is fitted further with x fixed, because y is slow."""
    problem = result.problem
    if not isinstance(problem, Problem) or result.status == "diverged":  # loaded, or without a lower level
        return None
    after, curvatures = _settled_surely(problem, result.x, PerTask(result.y.stacked))
    before = np.asarray(result.losses, float)
    size = max(np.abs(before).max(), np.abs(after).max())
    # Of the tasks that count, the worst one as it is and the one that it would be.
    i = max((int(before.argmax()), int(after.argmax())), key=lambda i: abs(after[i] - before[i]))
    if not abs(after[i] - before[i]) > LARGE_CHANGE * size:
        return None
    rate = float(np.nanmedian(result.history.lower_rate[1:, i])) if result.history.evaluations > 1 else np.nan
    share = rate * curvatures[i]
    is_slow = share < SLOW and getattr(result.solver, "lower_lr", None) is not None  # rates that are chosen fall
    if not is_slow and result.verdict not in AT_REST:
        return None
    more = ["more lower_steps"] if hasattr(result.solver, "lower_steps") else []
    if is_slow:
        remedy = f"a larger lower_lr (up to about {1 / curvatures[i]:.2g}; it was {rate:.2g})"
    else:
        remedy = " or ".join([*more, "a smaller upper_lr"])
    return finding(
        "lower level lags",
        f"The lower level lags: a hundred more lower steps move the loss of task {result.y.names[i]!r} from "
        f"{before[i]:.4g} to {after[i]:.4g}, the worst loss from {before.max():.4g} to {after.max():.4g}. Give "
        f"{remedy}.",
        before=before[i],
        after=after[i],
        task=result.y.names[i],
        share_of_largest_rate=share,
    )


def _settled_surely(problem: Problem, x: Any, y: PerTask[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The same as `_settled`, with shorter steps where those that the curvature here allows diverge."""
    for share in SHARES:
        found = _settled(problem, x, y, jax.random.key(0), share)
        if np.all(np.isfinite(found[0])):
            break
    return np.asarray(found[0], float), np.asarray(found[1], float)  # pyright: ignore[reportPossiblyUnboundVariable]


@jax.jit
def _settled(
    problem: Problem, x: Any, y: PerTask[Any], key: jax.Array, share: float = 1.0
) -> tuple[jax.Array, jax.Array]:
    """The losses after a hundred lower steps at this share of measured rates, and the curvatures L_i.

    On all the data where that is finite: y would be fitted to the rows of a batch, and its loss on others rise.
    """
    finite = all(group.train.finite for group in problem.groups)
    whole = problem.rebatched(lambda _: None) if finite else curvature.measuring(problem)
    known = curvature.condition(whole, x, y, key, curvature.unmeasured(y), 20)
    shorter = PerTask(tuple(group._replace(largest=group.largest / share) for group in known))
    losses = problem.validation_losses(x, curvature.settle(whole, x, y, key, shorter, 100))
    return losses, problem.join(PerTask(tuple(group.largest for group in known)))
