"""Points to examine: read from what the user has, with their lower problems solved; and remarks on both.

With solved lower problems the upper objective is l_i(x) = f_i(x, y_i*(x)), and its gradient is the true one. All of it
is on all the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel.diagnostics.regularity import is_strongly_convex
from bilevel.hypergradients.exact import ConjugateGradient
from bilevel.hypergradients.hypergradient import Hypergradient
from bilevel.hypergradients.upper import Point, Upper
from bilevel.lower.newton import Newton
from bilevel.problem import findings, initial_point
from bilevel.problem.group import UpperSample
from bilevel.problem.per_task import PerTask, TaskValues, fields_of
from bilevel.problem.problem import Problem
from bilevel.results.history import Iterate
from bilevel.results.result import Result
from bilevel.solvers._base.state import State

PRODUCTS = 1000  # the most Hessian products per linear system
Solution: TypeAlias = Result | Iterate | State  # what has an x, a y and weights

_NEWTON = Newton()


def check_is_problem(caller: str, problem: object) -> None:
    """Raises unless this is a `bl.Problem`."""
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")


def start(problem: Problem, x: Tree, y: Tree, key: jax.Array) -> tuple[Tree, PerTask[Tree]]:
    """x and y as arrays; raises where they do not fit the problem."""
    x = initial_point.arrays(x, "x")
    y = initial_point.lower_points(problem, y, key)
    findings.raise_first(findings.at_start(problem, x, y))
    return x, y


def check_estimator(caller: str, hypergradient: Hypergradient) -> None:
    """Raises unless this is an estimator with sensible arguments."""
    if isinstance(hypergradient, type) or not hasattr(hypergradient, "surrogate"):
        raise TypeError(
            f"{caller}(hypergradient=...) got {hypergradient!r}: it needs an estimator object, such as "
            "bl.hypergradients.Exact()."
        )
    hypergradient.check()


def read_point(caller: str, problem: Problem, result: Solution) -> Point:
    """Reads x, y and the weights from a result, an iterate or a solver's state."""
    check_is_problem(caller, problem)
    if isinstance(result, type) or not all(hasattr(result, name) for name in ("x", "y", "weights")):
        raise TypeError(
            f"{caller}(result=...) got {type(result).__name__}: it needs what bl.solve returns, or one of its iterates "
            "such as result.best."
        )
    x = initial_point.arrays(result.x, "x")
    try:
        weights = jnp.asarray(result.weights)
        if weights.shape != (problem.size,):
            raise ValueError(f"it has {weights.size} weights and the problem has {problem.size} tasks.")
        y = _stacked(problem, result.y)
        for group, yg in zip(problem.groups, y, strict=True):
            if group.y is not None and pytrees.signature(yg)[1:] != pytrees.signature(group.y)[1:]:
                name = problem.names[int(group.ids[0])]
                raise ValueError(f"its y of task {name!r} is {_one(yg)}, the problem's {_one(group.y)}.")
        findings.raise_first(findings.at_start(problem, x, y))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{caller}(result=...) does not fit this problem: {error}") from error
    return Point(x, y, weights, PerTask(((),) * len(y)))


def _stacked(problem: Problem, y: Tree) -> PerTask[Tree]:
    if isinstance(y, PerTask):
        return y
    if isinstance(y, TaskValues) and list(y.names) == list(problem.names):
        places = [[np.asarray(ids).tolist() for ids in groups] for groups in (y.ids, (g.ids for g in problem.groups))]
        if places[0] == places[1]:
            return PerTask(jax.tree.map(jnp.asarray, tuple(y.stacked)))
    if not isinstance(y, Mapping):
        raise TypeError(f"its y is {type(y).__name__}, not a mapping from task name to y.")
    if not set(y) & set(problem.names):
        raise ValueError(f"its y is of other tasks, {list(y)[:3]}.")
    return initial_point.lower_points(problem, dict(y), jax.random.key(0))


def _one(y: Tree) -> str:
    return pytrees.describe(jax.eval_shape(lambda y: pytrees.index(y, 0), y))


class LowerSolution(NamedTuple):
    """The lower level at x, solved; arrays are in the order of the tasks."""

    y: PerTask[Tree]  # y_i*(x)
    losses: jax.Array  # l_i(x) = f_i(x, y_i*(x)), on all validation data
    errors: jax.Array  # the last Newton step, which is about |y_i - y_i*|
    converged: jax.Array


@jax.jit
def solve_lower(problem: Problem, x: Tree, y: PerTask[Tree]) -> LowerSolution:
    """Solves every lower problem, starting from y."""
    solved, _, error, converged, _ = fields_of(problem.each(lambda task, y: _NEWTON.solve(task, x, y), y))
    return LowerSolution(solved, problem.validation_losses(x, solved), problem.join(error), problem.join(converged))


def weighted_gradient(problem: Problem, x: Tree, y: PerTask[Tree], weights: jax.Array) -> tuple[LowerSolution, Tree]:
    """Solves the lower problems from y; also returns the gradient of F(x, weights) = sum_i weights_i l_i(x)."""
    solved = solve_lower(problem, x, y)
    return solved, gradient_at(problem, x, solved.y, weights)


@jax.jit
def gradient_at(problem: Problem, x: Tree, y: PerTask[Tree], weights: jax.Array) -> Tree:
    """The gradient of F(x, weights) at solved y."""
    exact, point, samples = _exactly(problem, x, y, weights)
    return exact.direction(point, samples).direction


def task_gradients(problem: Problem, x: Tree, y: PerTask[Tree]) -> np.ndarray:
    """grad l_i(x) of every task at solved y, flat, in the order of the tasks; as large as n copies of x."""
    return np.asarray(jax.vmap(lambda gradient: ravel_pytree(gradient)[0])(_task_gradients(problem, x, y)))


@jax.jit
def _task_gradients(problem: Problem, x: Tree, y: PerTask[Tree]) -> Tree:
    uniform = jnp.full(problem.size, 1 / problem.size, jnp.result_type(*jax.tree.leaves(x)))
    exact, point, samples = _exactly(problem, x, y, uniform)
    return exact.directions(point, samples).direction


def _exactly(
    problem: Problem, x: Tree, y: PerTask[Tree], weights: jax.Array
) -> tuple[Upper, Point, PerTask[UpperSample]]:
    """An estimator by conjugate gradients to the last digits, with all the data instead of batches."""
    samples = PerTask(tuple(UpperSample(None, None, keys) for keys in problem.keys(jax.random.key(0))))
    eps = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(y))).eps)
    exact = Upper(problem, ConjugateGradient(PRODUCTS, eps**0.75))
    point = Point(x, y, weights, PerTask(((),) * len(y)))
    return exact, point._replace(v=exact.init(point, samples)), samples


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text in which the cells of each column have one width.

    >>> columns([("x", "1"), ("weights", "20")])
    ['x        1', 'weights  20']
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def one_of(problem: Problem, tasks: Sequence[int] | np.ndarray) -> str:
    """The name of the first of some tasks, and the number of the others."""
    more = len(tasks) - 1
    return f"task {problem.names[int(tasks[0])]!r}" + (f" (and of {more} more)" if more else "")


def lower_remarks(problem: Problem, solved: LowerSolution, smallest: Tree, largest: Tree) -> list[str]:
    """Remarks on lower problems that were not solved or have no unique solution."""
    remarks = []
    lost = np.flatnonzero(~np.asarray(solved.converged))
    if len(lost):
        remarks.append(
            f"The lower problem of {one_of(problem, lost)} was not solved (about {float(solved.errors[lost[0]]):.2g} "
            "away from its solution): the numbers are a guess."
        )
    unclear, positive = ~is_strongly_convex(smallest, largest), np.asarray(smallest) > 0
    stiff, flat = np.flatnonzero(unclear & positive), np.flatnonzero(unclear & ~positive)
    if len(stiff):
        low, high = float(smallest[stiff[0]]), float(largest[stiff[0]])
        remarks.append(
            f"g of {one_of(problem, stiff)} has curvatures in y from {low:.2g} to {high:.2g} at its solution: in "
            f"{np.asarray(smallest).dtype} the least cannot be told from 0, and y* may not be unique."
            + " jax_enable_x64 tells more."
            * (np.asarray(smallest).dtype == np.float32)
        )
    if len(flat):
        remarks.append(
            f"g of {one_of(problem, flat)} is not strongly convex in y at its solution (smallest curvature "
            f"{float(smallest[flat[0]]):.2g}): y* is not unique, or no minimum, and the numbers mean little."
        )
    return remarks
