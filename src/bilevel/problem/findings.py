"""Checks of a problem at a starting point. Each check yields findings.

`solve` raises the first fault, before any long work; `check_problem` lists them all.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import Data, Tree
from bilevel.problem import row_means
from bilevel.problem.constraints import Constraint
from bilevel.problem.group import Group
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem
from bilevel.problem.row_means import Pair, ProblemFinding
from bilevel.problem.sources import Source
from bilevel.problem.task import ROLES

LEVELS = ("upper", "lower")
COLUMNS = 5  # of data with NaN, that are named


def at_start(problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> Iterator[ProblemFinding]:
    """Data, constraint and objectives at the starting point: what every run needs. Of rows in files, some are read."""
    problem, y = problem.glimpse(y)
    yield from in_values(problem, x, y)
    yield from in_constraint("constraint", problem.constraint, "x", x)
    yield from in_losses(problem, x, y)


def raise_first(found: Iterable[ProblemFinding]) -> None:
    """Raises the first fault, if there is one, and warns of what may be one."""
    for finding in found:
        if finding.fault:
            raise finding.error(str(finding))
        if finding.suspect:
            warnings.warn(str(finding), stacklevel=2)


def in_batches(problem: BaseProblem, x: Tree, y: PerTask[Tree], harmless: bool = True) -> Iterator[ProblemFinding]:
    """Losses that are not means over rows, of groups whose tasks have equal sizes: wrong where batches are drawn.

    Without those that are `harmless`, ordinary losses on all the data cost no time.
    """
    if pytrees.is_traced((x, y, problem)):
        return
    problem, y = problem.glimpse(y, files_only=False)
    pairs = _pairs(problem, equal_sizes=True)
    yield from row_means.in_rows(
        problem, x, y, [pair for pair in pairs if harmless or row_means.matters(problem, x, y, pair)]
    )


def _pairs(problem: BaseProblem, equal_sizes: bool) -> list[Pair]:
    """The losses of groups whose tasks have equally many rows, or not."""
    every = [Pair(g, level) for g in range(len(problem.groups)) for level in LEVELS]
    return [pair for pair in every if problem.groups[pair.group].equal_sizes(pair.level) == equal_sizes]


# ------------------------------------------------------------------ numbers


def in_values(problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> Iterator[ProblemFinding]:
    """NaN and infinity in x, data and y, task by task."""
    if not _finite(x):
        yield ProblemFinding("x has NaN or infinity", "it needs finite numbers")
    for group, y_group in zip(problem.groups, y, strict=True):
        for role in ROLES:
            source: Source | None = getattr(group, role)
            if source is None or source.data is None or _finite(source.data):
                continue
            for k in range(group.size):
                if not _finite(source.task(k)):
                    said = f"its {role} data has NaN or infinity ({_where_not_finite(source.task(k))})"
                    yield ProblemFinding(said, "it needs finite numbers", _name(problem, group, k))
        if not _finite(y_group):
            for k in range(group.size):
                if not _finite(pytrees.index(y_group, k)):
                    yield ProblemFinding(
                        "its y has NaN or infinity", "it needs finite numbers", _name(problem, group, k)
                    )


def _where_not_finite(data: Data) -> str:
    """How many numbers of a task's rows are not finite, in which columns, and the first row."""
    said = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if _finite(leaf):
            continue
        odd = ~np.isfinite(np.asarray(leaf)).reshape(len(leaf), -1)
        columns = np.flatnonzero(odd.any(axis=0))
        where = f"{jax.tree_util.keystr(path)}: ".removeprefix(": ") + f"{odd.sum()} of {odd.size} numbers"
        if odd.shape[1] > 1:
            shown = ", ".join(map(str, columns[:COLUMNS])) + ", ..." * (len(columns) > COLUMNS)
            where += f", in column{'s' * (len(columns) > 1)} {shown}"
        said.append(f"{where}, first in row {int(np.argmax(odd.any(axis=1)))}")
    return "; ".join(said)


def _finite(values: Tree) -> bool:
    """Whether all numbers are finite; what is traced cannot be looked at."""
    return pytrees.is_traced(values) or pytrees.is_finite(values)


def _name(problem: BaseProblem, group: Group, k: int) -> str:
    return problem.names[int(group.ids[k])]


# ------------------------------------------------------------------ constraints


@jax.jit
def _project(constraint: Constraint, point: Tree) -> Tree:
    return constraint.project(point)


def in_constraint(argument: str, constraint: Constraint, name: str, point: Tree) -> Iterator[ProblemFinding]:
    """A constraint that does not fit a point, or a point that does not lie in it."""
    what = f"{argument} {constraint} does not fit {name}, which is {pytrees.describe(point)}"
    try:
        projected = jax.eval_shape(constraint.project, point)
    except (TypeError, ValueError) as error:
        yield ProblemFinding(f"{what}: {_first_line(error)}", prevents_losses=False)
        return
    if pytrees.signature(projected) != pytrees.signature(point):
        yield ProblemFinding(f"{what}: it projects {name} to {pytrees.describe(projected)}.", prevents_losses=False)
        return
    try:
        getattr(constraint, "check", lambda _: None)(point)  # a user's own needs nothing but `project`
    except ValueError as error:
        yield ProblemFinding(f"{argument} {_first_line(error)}", prevents_losses=False)  # it names itself
        return
    if pytrees.is_traced((point, constraint)) or not _finite(point):
        return
    inside = jax.tree.leaves(_project(constraint, point))
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(jax.tree.leaves(point), inside, strict=True)]
    distance = sum(float(np.sum((a - b) ** 2)) for a, b in pairs) ** 0.5
    scale = sum(float(np.sum(a**2)) for a, _ in pairs) ** 0.5
    if not distance <= 1e-5 * (1 + scale):
        yield ProblemFinding(
            f"{name} lies outside the {argument} {constraint}, {distance:.3g} away from it: start inside, for "
            f"instance at problem.{argument}.project({name}).",
            prevents_losses=False,
        )


# ------------------------------------------------------------------ losses


# Run once, so that compiling it is what takes time; without any optimisation large data would take longer still.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
def _losses(problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> list[PerTask[jax.Array]]:
    """f and g of every task on all the data, which is an argument: as a constant it would take seconds to compile."""
    groups = list(zip(problem.groups, y, strict=True))
    return [
        PerTask(tuple(g.losses(getattr(g, level), g.source(level), x, own) for g, own in groups)) for level in LEVELS
    ]


def in_losses(problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> Iterator[ProblemFinding]:
    """Losses that fail, are not one real number, are not finite, or are not means over rows where tasks need it."""
    wrong = [f for g, y_g in zip(problem.groups, y, strict=True) for f in _in_shapes(problem, g, x, y_g)]
    yield from wrong
    if wrong or pytrees.is_traced((x, y, problem)):
        return
    try:
        values = _losses(problem, x, y)
    except Exception as error:  # shapes that fit one row by chance
        calls = " or ".join(problem.calls[level] for level in LEVELS)
        yield ProblemFinding(f"{calls} fails on all the data, though not on one row: {_first_line(error)}")
        return
    broken = False
    for level, per_group in zip(LEVELS, values, strict=True):
        for group, own in zip(problem.groups, per_group, strict=True):
            for k in np.flatnonzero(~np.isfinite(np.asarray(own))):
                broken = True
                said = f"{problem.calls[level]} is {float(own[k])} at the starting point"
                yield ProblemFinding(said, "it needs a finite value there", _name(problem, group, int(k)))
    if broken:
        return
    yield from row_means.in_rows(problem, x, y, _pairs(problem, equal_sizes=False))


# Compiled never, and traced once for all runs of a problem.
@functools.partial(jax.jit, static_argnames="function")
def _on_one_row(function: Callable, group: Group, source: Source, x: Tree, y: Tree) -> Tree:
    take = lambda source, y: function(x, y, source.take(source.draw(jax.random.key(0), 1)))  # noqa: E731
    return jax.vmap(take, in_axes=(source.axes, 0), axis_size=group.size)(source, y)


@functools.partial(jax.jit, static_argnames="function")
def _on_all(function: Callable, group: Group, source: Source, x: Tree, y: Tree) -> Tree:
    return group.losses(function, source, x, y)


def _in_shapes(problem: BaseProblem, group: Group, x: Tree, y: Tree) -> Iterator[ProblemFinding]:
    """Checks the outputs of a group's functions by tracing; nothing is computed."""
    levels = [(getattr(group, level), group.source(level), problem.calls[level]) for level in LEVELS]
    for role in ("selection", "test"):
        if getattr(group, role) is not None:
            call = f"{problem.calls['upper'].split(' on ')[0]} on {role} rows"
            levels.append((group.upper, getattr(group, role), call))
    for function, source, call in levels:
        said, error = None, ValueError
        try:
            out = (_on_one_row if jax.tree.leaves(source) else _on_all).eval_shape(function, group, source, x, y)
        except Exception as raised:  # whatever the user's function raises
            y_one = jax.eval_shape(lambda: pytrees.index(y, 0))
            point = f"x = {pytrees.describe(x)}" + (f" and y = {pytrees.describe(y_one)}" if jax.tree.leaves(y) else "")
            said = f"fails with {point}: {_first_line(raised)}"
        else:
            if not hasattr(out, "shape") or out.shape != (group.size,):
                one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), out)
                said = f"must return one number; it returns {pytrees.describe(one)}."
            elif not jnp.issubdtype(out.dtype, jnp.floating):
                said, error = f"must return a real floating-point number; it returns {out.dtype}.", TypeError
        if said is not None:
            yield ProblemFinding(f"{call} of task {_name(problem, group, 0)!r} {said}", error=error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
