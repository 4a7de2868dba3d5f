"""The faults that `check_problem` looks for, one kind a function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel.problem import checks
from bilevel.problem.group import Group
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Arrays, Ragged

ROWS = 5  # in the batch on which a loss is compared with the mean of its rows


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something about a problem.

    Attributes:
        text: what was found.
        advice: what to do about it; "" where the text says so.
        task: the task it was found in; None = the problem as a whole.
        fault: whether it is wrong, rather than worth knowing.
        blocks: whether the losses cannot be evaluated because of it.
    """

    text: str
    advice: str = ""
    task: str | None = None
    fault: bool = True
    blocks: bool = True

    def __str__(self) -> str:
        where = "" if self.task is None else f"task {self.task!r}: "
        return f"{where}{self.text}" + (f": {self.advice}." if self.advice else "")


def in_values(problem: Problem, x: Any, y: tuple) -> Iterator[Finding]:
    """NaN and infinity in data, y and x, task by task."""
    if not _finite(x):
        yield Finding("x has NaN or infinity", "it needs finite numbers")
    for group, yg in zip(problem.groups, y, strict=True):
        names = [problem.names[int(i)] for i in group.ids]
        for role in ("train", "validation", "test"):
            data = getattr(getattr(group, role), "data", None)
            if data is None or _finite(data):
                continue
            for k, name in enumerate(names):
                if not _finite(getattr(group, role).task(k)):
                    yield Finding(f"its {role} data has NaN or infinity", "it needs finite numbers", name)
        if not _finite(yg):
            for k, name in enumerate(names):
                if not _finite(pytrees.index(yg, k)):
                    yield Finding("its y has NaN or infinity", "it needs finite numbers", name)


def _finite(values: Any) -> bool:
    return bool(checks.all_finite(values))


def in_constraint(problem: Problem, x: Any) -> Iterator[Finding]:
    """A constraint that does not fit x, or that x does not fulfil."""
    try:
        checks.check_inside("constraint", problem.constraint, "x", x)
    except ValueError as error:
        if not str(error).startswith("x has NaN"):  # said already
            yield Finding(str(error), blocks=False)


def in_losses(problem: Problem, x: Any, y: tuple) -> Iterator[Finding]:
    """Losses that fail, are no number, are not finite, or are not means over rows."""
    for group, yg in zip(problem.groups, y, strict=True):
        for level in ("upper", "lower"):
            yield from _in_loss(problem, group, x, yg, level)


def _in_loss(problem: Problem, group: Group, x: Any, y: Any, level: str) -> Iterator[Finding]:
    names = [problem.names[int(i)] for i in group.ids]
    try:
        checks.check_objective(problem, group, x, y, level)
    except (ValueError, TypeError) as error:
        values = _losses(group, x, y, level)
        broken = ~np.isfinite(values)
        for k in np.flatnonzero(broken):
            said = f"{level}(x, y, batch) is {values[k]} at the starting point"
            yield Finding(said, "it needs a finite value", names[k])
        if np.any(broken):
            return
        if "not a mean over the rows" not in str(error):  # which is told apart below, task by task
            yield Finding(str(error))
            return
    yield from _in_rows(group, names, x, y, level)


def _losses(group: Group, x: Any, y: Any, level: str) -> np.ndarray:
    """One number per task, or none where there is no such thing."""
    try:
        values = np.asarray(checks.losses(group, x, y, level))
    except Exception:  # whatever the user's function raises; it has been reported
        return np.zeros(0)
    return values if values.shape == (group.size,) and np.issubdtype(values.dtype, np.floating) else np.zeros(0)


def _in_rows(group: Group, names: list[str], x: Any, y: Any, level: str) -> Iterator[Finding]:
    source = group.validation if level == "upper" else group.train
    if not jax.tree.leaves(source):
        return
    batch = group.upper_batch if level == "upper" else group.lower_batch
    try:
        whole, rows = map(np.asarray, _row_means(group, x, y, level))
    except Exception:  # a generator whose batches have no rows, say
        return
    needed = isinstance(source, Ragged) or batch is not None
    apart = ~np.isclose(whole, rows, rtol=1e-3, atol=1e-5) & np.isfinite(whole) & np.isfinite(rows)
    for k in np.unique(np.nonzero(apart)[1])[:1]:  # one function, so one task tells it
        at = int(np.argmax(apart[:, k]))
        why = "tasks with different numbers of rows" if isinstance(source, Ragged) else "batches"
        yield Finding(
            f"{level} is not a mean over the rows of its batch ({whole[at, k]:.5g} on {ROWS} rows, {rows[at, k]:.5g} "
            "as the mean of one-row values)",
            f"{why} need means" if needed else "harmless as long as steps see all the data of tasks of equal size",
            names[int(k)],
            fault=needed,
            blocks=False,
        )


@functools.partial(jax.jit, static_argnames="level")
def _row_means(group: Group, x: Any, y: Any, level: str) -> tuple[jax.Array, jax.Array]:
    """A loss on a few rows, and the mean of the losses on each of them: at y and away from it, for every task."""
    source = group.validation if level == "upper" else group.train
    function = getattr(group, level)

    def one(source: Any, y: Any) -> tuple[jax.Array, jax.Array]:
        batch = source.take(_a_few(source))
        each = lambda row: function(x, y, jax.tree.map(lambda a: a[None], row))  # noqa: E731
        return function(x, y, batch), jnp.mean(jax.vmap(each)(batch))

    away = jax.tree.map(lambda y: y + jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape), y)
    two = jax.vmap(jax.vmap(one, in_axes=(source.axes, 0), axis_size=group.size), in_axes=(None, 0))
    return two(source, pytrees.stack([y, away]))


def _a_few(source: Any) -> Any:
    """A sample of `ROWS` rows, the first ones where there is a first."""
    if isinstance(source, Arrays):
        return jnp.arange(ROWS) % source.rows
    if isinstance(source, Ragged):
        return source.offset + jnp.arange(ROWS) % source.size
    return source.draw(jax.random.key(0), ROWS)
