"""Losses row by row: how well a mean over few rows is known."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from bilevel.diagnostics.points import read_point
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.row_moments import Moments, row_moments


def loss_errors(problem: Problem, result: Any, role: str = "validation") -> np.ndarray:
    """The standard error of every task's loss f_i(x, y_i), from the spread of its rows; in the order of the tasks.

    How far the mean over so many rows may be from that over all rows of the kind, for an x and y that were not fitted
    to these rows: for `bl.weightings.UpperBound` and `bl.weightings.Shrunk`. A loss must be a mean over rows. A
    generator is looked at on a sample of as many rows as its losses are measured on.

    Args:
        problem: the problem.
        result: what `bl.solve` returns (its last iterate is taken), or one of its iterates.
        role: whose rows, "validation" or "test".

    >>> import jax.numpy as jnp
    >>> import bilevel as bl
    >>> def upper(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> rows = jnp.array([0.0, 0.0, 2.0, 2.0])
    >>> problem = bl.Problem(upper, upper, [bl.Task(rows, rows, y=jnp.array(0.0))])
    >>> start = bl.solve(problem, bl.SOBA(1e-9, 1e-9), jnp.array(0.0), steps=1, progress=False, fitted=False)
    >>> loss_errors(problem, start).round(4).tolist()  # of 0, 0, 4, 4
    [1.1547]
    """
    point = read_point("loss_errors", problem, result)
    if role not in ("train", "validation", "test", "selection"):
        raise ValueError(f"loss_errors(role={role!r}): it needs the name of rows, such as 'validation'.")
    if any(getattr(group, role, None) is None for group in problem.groups):
        raise ValueError(f"loss_errors(role={role!r}): not every task has such rows.")
    return Moments(*jax.device_get(_moments(problem, point.x, point.y, role))).error()


@functools.partial(jax.jit, static_argnames="role")
def _moments(problem: Problem, x: Any, y: PerTask[Any], role: str) -> Moments:
    found = [row_moments(g.upper, getattr(g, role), x, y_g) for g, y_g in zip(problem.groups, y, strict=True)]
    return problem.join(PerTask(tuple(found)))
