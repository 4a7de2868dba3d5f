"""Points to look at, read from what the user has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel.oracles.upper import Point
from bilevel.problem import findings, initial_point
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.task_names import TaskValues


def check_is_problem(caller: str, problem: Any) -> None:
    """Raises unless it is a problem."""
    if not isinstance(problem, Problem):
        raise TypeError(f"{caller}(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")


def read_point(caller: str, problem: Any, result: Any) -> Point:
    """x, y and the weights of a result, an iterate or a solver's state."""
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


def _stacked(problem: Problem, y: Any) -> PerTask[Any]:
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


def _one(y: Any) -> str:
    return pytrees.describe(jax.eval_shape(lambda y: pytrees.index(y, 0), y))


def check_estimator(caller: str, hypergradient: Any) -> None:
    """Raises unless it is an estimator whose arguments make sense."""
    if isinstance(hypergradient, type) or not hasattr(hypergradient, "surrogate"):
        raise TypeError(
            f"{caller}(hypergradient=...) got {hypergradient!r}: it needs an estimator object, such as "
            "bl.hypergradients.Exact()."
        )
    hypergradient.check()
