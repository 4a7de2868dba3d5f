"""Whether losses are means over the rows of their batch, seen on a few rows.

Batches, and tasks with different numbers of rows, need it. Where neither is there a loss may be anything, but one
mistake is not noticed by anything else: targets of shape (rows, 1) beside predictions of shape (rows,) are combined to
(rows, rows), every prediction with every target, and the mean of that is a number like any other. It is refused where
just one array of a batch is such a column, and warned of elsewhere.

`ProblemFinding` is what a check of a problem says. `row_moments` gives the mean and the spread of losses row by row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import Objective, Tree
from bilevel.problem.group import Group
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem
from bilevel.problem.sources import Source

ROWS = 5  # in the batch on which a loss is compared with the mean of its rows
UNUSUAL = 1009  # a number of rows that no other axis is likely to have; nothing of this size is made
TOLERANCE = 1e-2  # of the size of one-row losses, or more where numbers are short; a sum is ROWS times a mean


class Pair(NamedTuple):
    """A loss: that of a group, at a level."""

    group: int
    level: str


def matters(problem: BaseProblem, x: Tree, y: PerTask[Tree], pair: Pair) -> bool:
    """Whether a loss has to be a mean over rows, or combines rows with each other, which may be a mistake."""
    group, y_group = problem.groups[pair.group], y.groups[pair.group]
    batch = group.upper_batch if pair.level == "upper" else group.lower_batch
    return not group.equal_sizes(pair.level) or batch is not None or _combines_rows(group, x, y_group, pair.level)


def in_rows(problem: BaseProblem, x: Tree, y: PerTask[Tree], pairs: Sequence[Pair]) -> Iterator[ProblemFinding]:
    """Losses that are no means over rows; of each one task, as the function is the same for all of its group."""
    pairs = tuple(pair for pair in pairs if jax.tree.leaves(problem.groups[pair.group].source(pair.level)))
    try:
        found = jax.device_get(_losses(problem, x, y, pairs)) if pairs else ()
    except Exception:  # a generator whose batches have no rows, say; the others are looked at one by one
        for pair in pairs if len(pairs) > 1 else ():
            yield from in_rows(problem, x, y, [pair])
        return
    for pair, own in zip(pairs, found, strict=True):
        if own.whole.shape != own.rows.shape or not jnp.issubdtype(own.whole.dtype, jnp.floating):
            continue  # no numbers, which `in_losses` reports
        for k in np.unique(np.nonzero(own.apart)[1])[:1]:
            at, group = int(np.argmax(own.apart[:, k])), problem.groups[pair.group]
            said = (
                f"{problem.calls[pair.level]} is not a mean over the rows of its batch ({own.whole[at, k]:.5g} on "
                f"{ROWS} rows, {own.rows[at, k]:.5g} as the mean of one-row values)"
            )
            name = problem.names[int(np.asarray(group.ids)[k])]
            yield _finding(said, name, group, pair.level, _unpaired(problem, x, y, pair, own))


def _finding(said: str, name: str, group: Group, level: str, unpaired: str | None) -> ProblemFinding:
    equal = group.equal_sizes(level)
    batch = group.upper_batch if level == "upper" else group.lower_batch
    needed = not equal or batch is not None
    advice = f"{'batches' if equal else 'tasks with different numbers of rows'} need means" if needed else ""
    if unpaired is not None:
        said += f", and its value is the same whichever row of {unpaired} belongs to which row of the rest"
        mistake = (
            "shapes such as (rows,) and (rows, 1) may have been combined, which gives (rows, rows); make them alike"
        )
        advice = f"{advice}; {mistake}" if needed else mistake
    elif not needed:
        advice = "harmless as long as steps see all the data of tasks of equal size"
    # One column of numbers beside others that are none: nobody means to pair every prediction with every target.
    fault = needed or (unpaired is not None and _has_one_column(group, level))
    return ProblemFinding(
        said, advice, name, fault=fault, suspect=unpaired is not None and not fault, prevents_losses=False
    )


def _has_one_column(group: Group, level: str) -> bool:
    """Whether just one of the arrays of a batch has the shape (rows, 1)."""
    return [a.shape[2:] for a in jax.tree.leaves(group.source(level).data)].count((1,)) == 1


class _Losses(NamedTuple):
    """Losses of every task, at y and away from it: on a few rows, and on each of these rows."""

    whole: Tree
    rows: Tree  # the mean of the losses on each row
    size: Tree  # of their absolute values

    @property
    def apart(self) -> np.ndarray:
        """The points at which the two differ."""
        tolerance = max(TOLERANCE, 30 * float(jnp.finfo(self.whole.dtype).eps))
        whole, rows, size = (np.asarray(own, np.float64) for own in self)
        known = np.isfinite(whole) & np.isfinite(rows)
        with np.errstate(invalid="ignore"):
            return known & (np.abs(whole - rows) > 1e-5 + tolerance * size)


# One program for all, run once: compiling it is what takes time.
@functools.partial(jax.jit, static_argnames=("pairs", "rolled"), compiler_options={"xla_backend_optimization_level": 0})
def _losses(
    problem: BaseProblem, x: Tree, y: PerTask[Tree], pairs: tuple[Pair, ...], rolled: int | None = None
) -> tuple[_Losses, ...]:
    """The losses of each pair, on rows of which one leaf is moved on by one where `rolled` says which."""
    return tuple(_losses_of(problem.groups[g], x, y.groups[g], level, rolled) for g, level in pairs)


def _losses_of(group: Group, x: Tree, y: Tree, level: str, rolled: int | None) -> _Losses:
    source, function = group.source(level), getattr(group, level)

    def one(source: Source, y: Tree) -> _Losses:
        leaves, structure = jax.tree.flatten(source.take(source.first(ROWS)))
        batch = jax.tree.unflatten(structure, [jnp.roll(a, i == rolled, 0) for i, a in enumerate(leaves)])
        each = jax.vmap(lambda row: function(x, y, jax.tree.map(lambda a: a[None], row)))(batch)
        return _Losses(function(x, y, batch), jnp.mean(each), jnp.mean(jnp.abs(each)))

    away = jax.tree.map(lambda y: y + jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape), y)
    tasks = jax.vmap(one, in_axes=(source.axes, 0), axis_size=group.size)
    return jax.vmap(tasks, in_axes=(None, 0), axis_size=2)(source, pytrees.stack([y, away]))


def _unpaired(problem: BaseProblem, x: Tree, y: PerTask[Tree], pair: Pair, before: _Losses) -> str | None:
    """The part of a batch whose rows may change places without a change of the loss, though one-row losses change."""
    group = problem.groups[pair.group]
    source = group.source(pair.level)
    rows = jax.vmap(lambda own: own.take(own.first(ROWS)), in_axes=(source.axes,), axis_size=group.size)
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(rows, source))
    for i, (path, _) in enumerate(leaves if len(leaves) > 1 else []):
        (after,) = jax.device_get(_losses(problem, x, y, (pair,), rolled=i))
        same = before._replace(rows=after.whole).apart
        moved = before._replace(whole=after.rows).apart
        if moved.any() and not same.any():
            return f"batch{jax.tree_util.keystr(path)}"
    return None


# ------------------------------------------------------------------ rows that meet each other


def _combines_rows(group: Group, x: Tree, y: Tree, level: str) -> bool:
    """Whether a loss on all the data makes an array with two axes of rows, found by tracing it: nothing is compiled."""
    batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct((UNUSUAL, *a.shape[2:]), a.dtype), group.source(level).data)
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), y)
    try:
        traced = jax.make_jaxpr(getattr(group, level))(x, one, batch)
    except Exception:  # it may need another number of rows
        return True
    return any(shape.count(UNUSUAL) > 1 for shape in _shapes(traced))


def _shapes(traced: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of all values in a program, and in those that it calls."""
    for equation in getattr(traced, "eqns", ()):
        yield from (tuple(getattr(variable.aval, "shape", ())) for variable in equation.outvars)
        for inner in jax.tree.leaves(list(equation.params.values())):
            yield from _shapes(inner)


@dataclasses.dataclass(frozen=True)
class ProblemFinding:
    """One finding about a problem: a fault, or something worth knowing.

    Attributes:
        text: what was found.
        advice: what to do about it; "" where the text says so.
        task: the task it was found in; None = the problem as a whole.
        fault: whether it is wrong, rather than worth knowing.
        suspect: whether it may be a mistake, though not for certain: `solve` warns.
        prevents_losses: whether the losses cannot be evaluated because of it.
        error: what `solve` raises.
    """

    text: str
    advice: str = ""
    task: str | None = None
    fault: bool = True
    suspect: bool = False
    prevents_losses: bool = True
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        where = "" if self.task is None else f"task {self.task!r}: "
        return f"{where}{self.text}" + (f": {self.advice}." if self.advice else "")


class Moments(NamedTuple):
    """Moments of the losses of a task's rows; arrays over tasks."""

    rows: Tree  # how many
    mean: Tree
    variance: Tree  # about the mean, divided by the number of rows

    def error(self) -> np.ndarray:
        """The standard error of the mean; not known (NaN) from one row."""
        rows = np.asarray(self.rows, float)
        return np.sqrt(np.asarray(self.variance) / np.where(rows > 1, rows - 1, np.nan))


def row_moments(objective: Objective, source: Source, x: Tree, y: Tree) -> Moments:
    """The moments of an objective over all rows of a source, for every task of the group of that source and y."""
    longest = getattr(source, "longest", None) or source.rows
    assert isinstance(longest, int)

    def one(source: Source, y: Tree) -> Moments:
        rows = source.take(source.first(longest))
        losses = jax.vmap(lambda row: objective(x, y, jax.tree.map(lambda a: a[None], row)))(rows)
        exists = jnp.arange(longest) < source.rows
        count = jnp.asarray(source.rows, losses.dtype)
        mean = jnp.sum(jnp.where(exists, losses, 0)) / count
        return Moments(count, mean, jnp.sum(jnp.where(exists, (losses - mean) ** 2, 0)) / count)

    return jax.vmap(one, in_axes=(source.axes, 0), axis_size=len(jax.tree.leaves(y)[0]))(source, y)
