"""What is wrong with a problem or its start, said before any long work: which argument, what came, what is needed."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core import pytrees, values
from bilevel._core.values import is_number as is_number
from bilevel._core.values import is_positive as is_positive
from bilevel.problem.group import Group
from bilevel.problem.problem import Grouped, Problem
from bilevel.problem.sources import Generator, Ragged
from bilevel.rules import base as rules

LARGE = 2e9  # bytes that deserve a warning


def check_start(problem: Grouped, x: Any, y: tuple) -> None:
    """Data, constraint and objectives at the starting point."""
    _check_data(problem)
    _check_lower_start(problem, y)
    check_inside("constraint", problem.constraint, "x", x)
    for group, y_group in zip(problem.groups, y, strict=True):
        check_objective(problem, group, x, y_group, "upper")
        check_objective(problem, group, x, y_group, "lower")


def check_kind(solver: Any, problem: Any) -> None:
    """Raises where a solver is given a problem of another kind than it solves."""
    needed = getattr(solver, "problem_type", Grouped)
    if not isinstance(problem, needed):
        raise TypeError(
            f"{type(solver).__name__} solves a bl.{needed.__name__} and was given a "
            f"{'bl.' * isinstance(problem, Grouped)}{type(problem).__name__}."
        )


def check_given(name: str, rate: Any) -> None:
    """A positive number or a schedule: for solvers that choose no rates."""
    values.rate(name, rate, given=True)


def check_rate(name: str, rate: Any) -> None:
    """A positive number, a schedule, or None."""
    values.rate(name, rate)


def check_count(name: str, count: Any) -> None:
    """A whole number, 1 or more."""
    values.whole(name, count)


def check_part(name: str, count: Any, size: int) -> None:
    """A whole number from 1 to the number of tasks."""
    check_count(name, count)
    if count > size:
        raise ValueError(f"{name}={count!r}: the problem has {size} tasks, so it needs {size} or fewer.")


def check_share(name: str, value: Any) -> None:
    """A number above 0, up to 1, or a schedule."""
    values.share(name, value, scheduled=True)


def check_refresh(name: str, size: Any, problem: Problem) -> None:
    """A batch size, or None where all tasks have data that end."""
    if size is not None:
        check_count(name, size)
        batches = [batch for group in problem.groups for batch in (group.lower_batch, group.upper_batch)]
        if any(batch is None or batch > size for batch in batches):
            raise ValueError(f"{name}={size}: it needs at least the rows of a step's batch, or None = all the data.")
    elif any(isinstance(source, Generator) for group in problem.groups for source in (group.train, group.validation)):
        raise ValueError(f"{name}=None means all the data, which a Generator has not: give a number of rows.")


def check_memory(what: str, numbers: float, dtype: Any, advice: str) -> None:
    """Refuses what does not fit into this machine, and warns of what is large."""
    size = numbers * jnp.dtype(dtype).itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > there:
        raise ValueError(f"{what} needs {size / 1e9:.1f} GB and this machine has {there / 1e9:.1f} GB: {advice}.")
    if size > LARGE:
        warnings.warn(f"{what} needs {size / 1e9:.1f} GB: {advice}.", stacklevel=3)


def _check_data(problem: Grouped) -> None:
    for group in problem.groups:
        for role in ("train", "validation", "test"):
            data = getattr(getattr(group, role), "data", None)
            if data is None or pytrees.is_traced(data) or bool(all_finite(data)):
                continue
            for k, i in enumerate(group.ids):
                if not bool(pytrees.all_finite(getattr(group, role).task(k))):
                    raise ValueError(
                        f"task {problem.names[int(i)]!r} has NaN or infinity in its {role} data: "
                        "it needs finite numbers."
                    )


def _check_lower_start(problem: Grouped, y: tuple) -> None:
    for group, y_group in zip(problem.groups, y, strict=True):
        if pytrees.is_traced(y_group) or bool(all_finite(y_group)):
            continue
        for k, i in enumerate(group.ids):
            if not bool(pytrees.all_finite(pytrees.index(y_group, k))):
                raise ValueError(f"y of task {problem.names[int(i)]!r} has NaN or infinity: it needs finite numbers.")


all_finite = jax.jit(pytrees.all_finite)


def check_inside(argument: str, constraint: Any, name: str, point: Any) -> None:
    """A constraint that fits a point, which is finite and lies in it."""
    try:
        projected = jax.eval_shape(constraint.project, point)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{argument} {constraint} does not fit {name}, which is {pytrees.describe(point)}: {_first_line(error)}"
        ) from error
    if pytrees.signature(projected) != pytrees.signature(point):
        raise ValueError(
            f"{argument} {constraint} does not fit {name}, which is {pytrees.describe(point)}: it projects {name} to "
            f"{pytrees.describe(projected)}."
        )
    if pytrees.is_traced((point, constraint)):
        return
    if not bool(pytrees.all_finite(point)):
        raise ValueError(f"{name} has NaN or infinity: it needs finite numbers.")
    distance = float(optax.tree.norm(optax.tree.sub(constraint.project(point), point)))
    scale = float(optax.tree.norm(point))
    if not distance <= 1e-5 * (1 + scale):
        raise ValueError(
            f"{name} lies outside the {argument} {constraint}, {distance:.3g} away from it: start inside, for "
            f"instance at problem.{argument}.project({name})."
        )


def check_objective(problem: Grouped, group: Group, x: Any, y: Any, level: str) -> None:
    """One number, real and finite at the start, from a function that takes these shapes."""
    called = problem.calls[level]
    function: Callable = getattr(group, level)
    source = group.validation if level == "upper" else group.train
    name = problem.names[int(group.ids[0])]
    what = f"{called} of task {name!r}"

    def on_one_row() -> Any:
        return jax.vmap(
            lambda s, y: function(x, y, s.take(s.draw(jax.random.key(0), 1))),
            in_axes=(source.axes, 0),
            axis_size=group.size,
        )(source, y)

    has_rows = bool(jax.tree.leaves(source))
    try:
        out = jax.eval_shape(on_one_row if has_rows else lambda: losses(group, x, y, level))
    except Exception as error:  # whatever the user's function raises
        y_one = jax.eval_shape(lambda y: pytrees.index(y, 0), y)
        point = f"x = {pytrees.describe(x)}" + (f" and y = {pytrees.describe(y_one)}" if jax.tree.leaves(y) else "")
        raise ValueError(f"{what} fails with {point}: {_first_line(error)}") from error
    if not hasattr(out, "shape") or out.shape != (group.size,):
        raise ValueError(f"{what} must return one number; it returns {_describe_return(out)}.")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"{what} must return a real floating-point number; it returns {out.dtype}.")
    if pytrees.is_traced((x, y, problem)):
        return
    values = np.asarray(losses(group, x, y, level))
    if not np.all(np.isfinite(values)):
        k = int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"{called} of task {problem.names[int(group.ids[k])]!r} is {values[k]} at the starting point: "
            "it needs a finite value there."
        )
    if isinstance(source, Ragged):
        _check_row_mean(group, source, function, x, y, what)


@functools.partial(jax.jit, static_argnames="level")
def losses(group: Group, x: Any, y: Any, level: str) -> jax.Array:
    """The losses of a group on all its data, which is an argument: as a constant it would take seconds to compile."""
    source = group.validation if level == "upper" else group.train
    return group.losses(getattr(group, level), source, x, y)


def _check_row_mean(group: Group, source: Ragged, function: Callable, x: Any, y: Any, what: str) -> None:
    """Tasks of unequal size are averaged row by row, which is right only for a mean over rows."""
    k = int(np.argmax(np.asarray(source.size)))
    y = pytrees.index(y, k)
    batch = jax.tree.map(lambda a: a[:5], source.task(k))
    whole = function(x, y, batch)
    rows = np.mean([function(x, y, jax.tree.map(lambda a, j=j: a[j : j + 1], batch)) for j in range(_rows(batch))])
    if not np.isclose(whole, rows, rtol=1e-3, atol=1e-5):
        raise ValueError(
            f"{what} is not a mean over the rows of its batch ({float(whole):.6g} on five rows, {rows:.6g} as the mean "
            "of one-row values), which tasks with different numbers of rows need: use means, or equal sizes."
        )


def _rows(batch: Any) -> int:
    return jax.tree.leaves(batch)[0].shape[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _describe_return(out: Any) -> str:
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), out)
    return pytrees.describe(one)


def check_replay(rule: Callable[[Any], optax.GradientTransformation]) -> None:
    """Refuses a rule whose derivative at a zero gradient is NaN, as Adam's is with eps_root = 0."""
    transformation, zero = rule(0.1), jnp.zeros(())
    slope = jax.grad(
        lambda g: optax.tree.sum(rules.update(transformation, g, transformation.init(zero), zero, zero)[0])
    )(zero)
    if not bool(jnp.all(jnp.isfinite(slope))):
        raise ValueError(
            "lower_rule cannot be differentiated at a zero gradient (its derivative there is NaN), which Unrolled "
            "needs: for Adam give eps_root, as in functools.partial(optax.adam, eps_root=1e-8)."
        )
