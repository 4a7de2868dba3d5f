"""Losses row by row: how well a mean over few rows is known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.diagnostics.points import read_point
from bilevel.problem.group import Group
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Source


class Moments(NamedTuple):
    """Of the losses of one task's rows."""

    rows: Any  # how many
    mean: Any
    variance: Any  # about the mean, divided by the number of rows

    def error(self) -> np.ndarray:
        """The standard error of the mean; not known (NaN) from one row."""
        rows = np.asarray(self.rows, float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(np.asarray(self.variance) / np.where(rows > 1, rows - 1, np.nan))


def loss_errors(problem: Problem, result: Any, role: str = "validation") -> np.ndarray:
    """The standard error of every task's loss f_i(x, y_i), from the spread of its rows; in the order of the tasks.

    How far the mean over so many rows may be from that over all rows of the kind, for an x and y that were not fitted
    to these rows: for `bl.weightings.UpperBound` and `bl.weightings.Shrunk`. A loss must be a mean over rows. A
    generator is looked at on a sample of as many rows as its losses are measured on.

    Args:
        problem: the problem.
        result: what `bl.solve` returns (its last iterate is taken), or one of its iterates.
        role: whose rows, "validation" or "test".

    >>> import bilevel as bl
    >>> def upper(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> rows = jnp.array([0.0, 0.0, 2.0, 2.0])
    >>> problem = bl.Problem(upper, upper, [bl.Task(rows, rows, y=jnp.array(0.0))])
    >>> start = bl.solve(problem, bl.SOBA(1e-9, 1e-9), jnp.array(0.0), steps=1, progress=False)
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
    def of_group(group: Group, y: Any) -> Moments:
        source: Source = getattr(group, role)
        one = lambda own, y: moments(own, longest(source), lambda batch: group.upper(x, y, batch))  # noqa: E731
        return jax.vmap(one, in_axes=(source.axes, 0), axis_size=group.size)(source, y)

    return problem.join(PerTask(tuple(of_group(g, y_g) for g, y_g in zip(problem.groups, y, strict=True))))


def longest(source: Source) -> int:
    """The rows of the task that has most; of a group's source, before `vmap`."""
    found = getattr(source, "longest", None)
    return source.rows if found is None else found  # type: ignore[return-value]


def moments(source: Source, most: int, loss: Callable[[Any], jax.Array]) -> Moments:
    """Of the one-row losses of one task, which has at most so many rows."""
    rows = source.take(source.first(most))
    losses = jax.vmap(lambda row: loss(jax.tree.map(lambda a: a[None], row)))(rows)
    exists = jnp.arange(most) < source.rows
    count = jnp.asarray(source.rows, losses.dtype)
    mean = jnp.sum(jnp.where(exists, losses, 0)) / count
    return Moments(count, mean, jnp.sum(jnp.where(exists, (losses - mean) ** 2, 0)) / count)
