"""Numbers that a run is measured by besides its losses: accuracy, say, of every task at every evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bilevel._core import pytrees
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.results.history import COLUMNS

Metric = Callable[[Any, Any, Any], jax.Array]
Metrics = tuple[tuple[str, Metric], ...]  # names and functions; hashable, as they are part of what is compiled
ROLES = ("validation", "selection", "test")


def read(metrics: Mapping[str, Metric] | None, problem: BaseProblem) -> Metrics:
    """What `solve(metrics=...)` got, checked."""
    if metrics is None:
        return ()
    if not isinstance(metrics, Mapping):
        raise TypeError(f"solve(metrics=...) got {metrics!r}: it needs a dict of functions by name.")
    if metrics and not isinstance(problem, Problem):
        raise TypeError(f"solve(metrics=...) is for a bl.Problem, and this is a bl.{type(problem).__name__}.")
    for name, function in metrics.items():
        if not isinstance(name, str) or not name or "/" in name or name in COLUMNS:
            raise ValueError(f"solve(metrics=...) got the name {name!r}: it needs text of its own, without '/'.")
        if not callable(function):
            raise TypeError(f"solve(metrics={{{name!r}: ...}}) got {function!r}: it needs a function of (x, y, batch).")
    return tuple(metrics.items())


def check(metrics: Metrics, problem: BaseProblem, x: Any, y: PerTask[Any]) -> None:
    """Raises where a metric fails or is not one real number, found by tracing it."""
    for name, function in metrics:
        what = f"solve(metrics=...): {name!r} of (x, y, batch)"
        try:
            out = jax.eval_shape(lambda function=function: problem.losses(x, y, "validation", function))
        except Exception as error:  # whatever the user's function raises
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{what} fails: {said}") from error
        if not hasattr(out, "shape") or out.shape != (problem.size,) or not jnp.issubdtype(out.dtype, jnp.floating):
            one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), out)
            raise ValueError(f"{what} must return one floating-point number; it returns {pytrees.describe(one)}.")


def measure(metrics: Metrics, problem: BaseProblem, x: Any, y: PerTask[Any]) -> dict[str, jax.Array]:
    """Every metric on all the data of each role, one number a task: "validation accuracy", "test accuracy"."""
    return {f"{role} {name}": problem.losses(x, y, role, f) for name, f in metrics for role in roles_of(problem)}


def roles_of(problem: BaseProblem) -> list[str]:
    """The rows that a problem is evaluated on."""
    there = {"validation": True, "selection": problem.has_selection, "test": problem.has_test}
    return [role for role in ROLES if there[role]]


def in_order(metrics: Metrics, measured: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the order of the metrics, validation, selection, test; JAX sorts by name."""
    names = [f"{role} {name}" for name, _ in metrics for role in ROLES]
    return {name: measured[name] for name in names if name in measured}
