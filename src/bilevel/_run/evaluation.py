"""Losses on all the data, with y fitted to x: of all tasks, or of some if a step sees a few of very many.

The loss of x is f_i(x, y_i*(x)). The y of a run lags behind x. An evaluation therefore first fits a copy of y, by
Newton's method on all training rows, and estimates the error that is left in the losses (`Fit.lag`).

If some tasks are evaluated, one half of them is fixed and random: their losses are the columns of the history, and
their mean is an unbiased estimate of the mean over all tasks. The other half has the largest weights at that time,
because the worst tasks are likely among those.

Metrics measure more than losses: accuracy, say, of every task at every evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.simplex_program import respond
from bilevel._core.types import Json, Objective, Tree
from bilevel._run.devices import Layout
from bilevel.lower import Newton
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, fields_of
from bilevel.problem.problem import BaseProblem, Problem
from bilevel.results.history import COLUMNS
from bilevel.solvers._base.fresh_tasks import FreshTasks
from bilevel.solvers._base.solver import Solver
from bilevel.solvers._base.some_tasks import SomeTasks
from bilevel.solvers._base.task_subset import Rows
from bilevel.solvers.sampling import Uniform
from bilevel.weightings.base import Weighting

ACCURACY = 1e-4  # relative length of a Newton step below which y counts as fitted
FIXED, HEAVY = 512, 512  # tasks; a problem without more than these is evaluated on all


class Losses(NamedTuple):
    """Losses and metrics on all the data."""

    validation: Tree
    selection: Tree
    test: Tree
    metrics: dict[str, Tree]


class Fit(NamedTuple):
    """A copy of y that is fitted to x."""

    y: PerTask[Tree]
    lag: jax.Array  # the largest change of a loss by the last Newton step, as a share of the worst loss
    passes: jax.Array  # over all training rows


@jax.jit
def fit(problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> Fit:
    """Fits every y_i to x on all training rows, starting from its current value."""
    newton = Newton.suited(y)

    def one(task: TaskView, y: Tree) -> tuple[Tree, jax.Array, jax.Array, jax.Array]:
        solved = newton.solve(task, x, y, ACCURACY)
        loss = task.upper(x, solved.y, None)
        change = jnp.where(solved.converged, jnp.abs(loss - task.upper(x, solved.before, None)), jnp.inf)
        return solved.y, loss, change, solved.passes

    y, loss, change, passes = fields_of(problem.each(one, y))
    worst = jnp.max(jnp.abs(problem.join(loss)))
    lag = jnp.max(problem.join(change)) / jnp.where(worst > 0, worst, 1)
    return Fit(y, lag, jnp.max(problem.join(passes)))


@functools.partial(jax.jit, static_argnames="metrics")
def evaluate(problem: BaseProblem, x: Tree, y: Tree, metrics: Metrics = ()) -> Losses:
    """Losses on all the data of each role, and the metrics."""
    losses = problem.validation_losses(x, y), problem.selection_losses(x, y), problem.test_losses(x, y)
    # One number a task: "validation accuracy", "test accuracy".
    roles = roles_of(problem) if metrics else ()
    return Losses(*losses, {f"{role} {name}": problem.losses(x, y, role, f) for name, f in metrics for role in roles})


@jax.jit
def objective(weighting: Weighting, losses: jax.Array) -> jax.Array:
    """The maximum over the weights that a weighting allows."""
    weights, state = weighting.init(losses.shape[0], losses.dtype)
    _, state = weighting.update(weights, losses, state, 0.0)
    bounds = weighting.bounds(losses.shape[0], losses.dtype)
    return respond(weighting.scores(losses, state), bounds, weighting.pull).value


@jax.jit
def fit_fresh(solver: FreshTasks, problem: Problem, x: Tree, y: Tree) -> Tree:
    """`solver.fit`, compiled. No step sees these tasks; their y is fitted as a step fits that of its own tasks."""
    return solver.fit(problem, x, y)


@functools.partial(jax.jit, static_argnames=("metrics", "fits"))
def _evaluate_some(
    problem: Problem, x: Tree, y: Tree, places: PerTask[jax.Array], metrics: Metrics, fits: bool
) -> tuple[Losses, jax.Array, jax.Array]:
    """Losses, lag and passes."""
    rows = Rows.of(problem, places)
    few, own = rows.problem_with_held_out_rows(problem), rows.take(y)
    nothing = jnp.zeros((), jnp.int32)
    y, lag, passes = fit(few, x, own) if fits else (own, jnp.array(jnp.nan), nothing)
    return evaluate(few, x, y, metrics), lag, passes


class EvaluatedTasks(NamedTuple):
    """The tasks that are evaluated along a run, by their places in their groups."""

    fixed: tuple[np.ndarray, ...]  # in order
    ids: tuple[np.ndarray, ...]  # the numbers of all tasks, group by group
    heavy: tuple[int, ...]  # the number of heavy tasks of each group
    layout: Layout | None = None  # of the devices that the tasks are on; None = one

    @classmethod
    def of(cls, solver: Solver, problem: BaseProblem, layout: Layout | None = None) -> EvaluatedTasks | None:
        """The part to evaluate; None = all tasks."""
        if not isinstance(solver, SomeTasks) or problem.size <= FIXED + HEAVY:
            return None
        sizes = [group.size for group in problem.groups]
        counts, draws = Uniform(FIXED).counts(sizes), np.random.default_rng(0)
        fixed = [np.sort(draws.choice(size, count, replace=False)) for size, count in zip(sizes, counts, strict=True)]
        left = [size - count for size, count in zip(sizes, counts, strict=True)]
        heavy = [min(a, b) for a, b in zip(Uniform(HEAVY).counts(sizes), left, strict=True)]
        return cls(tuple(fixed), tuple(np.asarray(group.ids) for group in problem.groups), tuple(heavy), layout)

    @property
    def tasks(self) -> np.ndarray:
        """The numbers of the fixed tasks, in order."""
        return np.sort(np.concatenate([ids[places] for ids, places in zip(self.ids, self.fixed, strict=True)]))

    def places(self, weights: np.ndarray) -> list[np.ndarray]:
        """The places of every group's fixed tasks, followed by its heavy ones."""
        found = []
        for ids, fixed, count in zip(self.ids, self.fixed, self.heavy, strict=True):
            own = np.array(weights[ids])
            own[fixed] = -1
            found.append(np.concatenate([fixed, _largest(own, count)]).astype(np.int32))
        return found

    def evaluate(
        self, problem: BaseProblem, x: Tree, y: Tree, weights: np.ndarray, metrics: Metrics, fits: bool
    ) -> PartLosses:
        """The losses of these tasks, at y as it is or fitted to x; the problem and y are placed as the layout says."""
        places = self.places(weights)
        asked = Asked.of(places) if self.layout is None else Asked.on_devices(places, self.fixed, self.layout)
        losses, lag, passes = jax.device_get(_evaluate_some(problem, x, y, PerTask(asked.places), metrics, fits))
        losses = jax.tree.map(lambda a: a[asked.where], losses)
        numbers = np.concatenate([ids[own] for ids, own in zip(self.ids, places, strict=True)])
        is_fixed = np.concatenate([np.arange(len(p)) < len(f) for p, f in zip(places, self.fixed, strict=True)])
        columns = np.flatnonzero(is_fixed)[np.argsort(numbers[is_fixed])]
        worst = int(np.argmax(np.where(np.isnan(losses.validation), np.inf, losses.validation)))
        own = jax.tree.map(lambda a: a[columns], losses)
        return PartLosses(own, float(losses.validation[worst]), int(numbers[worst]), float(lag), int(passes))


class Asked(NamedTuple):
    """Tasks to evaluate, and where their losses are in the output."""

    places: tuple[np.ndarray, ...]  # in the groups as they are on the devices
    where: np.ndarray  # each task that was wanted among these

    @classmethod
    def of(cls, places: Sequence[np.ndarray]) -> Asked:
        """On one device."""
        return cls(tuple(places), np.arange(sum(map(len, places))))

    @classmethod
    def on_devices(cls, places: Sequence[np.ndarray], fixed: Sequence[np.ndarray], layout: Layout) -> Asked:
        """Equally many tasks of every device; a device with fewer requested tasks evaluates others as well."""
        asked, where, before = [], [], 0
        for own, always, ranges in zip(places, fixed, layout.ranges, strict=True):
            position = np.zeros(len(own), int)
            for start, stop, spread in ranges:
                size = (stop - start) // (layout.devices if spread else 1)
                first = np.arange(start, stop, size)
                most = max(np.sum((always >= begin) & (always < begin + size)) for begin in first)
                room = min(size, int(most) + len(own) - len(always))
                lists = first[:, None] + np.arange(room)
                for device, begin in enumerate(first):
                    mine = np.flatnonzero((own >= begin) & (own < begin + size))
                    lists[device, : len(mine)] = own[mine]
                    position[mine] = before + device * room + np.arange(len(mine))
                asked.append((lists.ravel() - start).astype(np.int32))
                before += lists.size
            where.append(position)
        return cls(tuple(asked), np.concatenate(where))


def _largest(weights: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest weights. Weights at or below the mean are often equal: of those, any."""
    above = np.flatnonzero(weights > weights.mean())
    if len(above) > count:
        return above[np.argpartition(-weights[above], count - 1)[:count]] if count else above[:0]
    others = np.flatnonzero((weights >= 0) & (weights <= weights.mean()))
    return np.concatenate([above, others[: count - len(above)]])


class PartLosses(NamedTuple):
    """Losses of the fixed tasks, and the largest of all that were evaluated."""

    losses: Losses
    largest: float
    largest_task: int
    lag: float
    passes: int


Metric = Objective
Metrics = tuple[tuple[str, Metric], ...]  # names and functions; hashable, as they are part of what is compiled
ROLES = ("validation", "selection", "test")


def read(metrics: Mapping[str, Metric], problem: BaseProblem) -> Metrics:
    """The metrics of `solve(metrics=...)`, checked."""
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


def check_metrics(metrics: Metrics, problem: BaseProblem, x: Tree, y: PerTask[Tree]) -> None:
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


def roles_of(problem: BaseProblem) -> list[str]:
    """The rows that a problem is evaluated on."""
    there = {"validation": True, "selection": problem.has_selection, "test": problem.has_test}
    return [role for role in ROLES if there[role]]


def in_order(metrics: Metrics, measured: Mapping[str, Json]) -> dict[str, Tree]:
    """The values in the order of the metrics, then validation, selection, test; JAX had sorted them by name."""
    names = [f"{role} {name}" for name, _ in metrics for role in ROLES]
    return {name: measured[name] for name in names if name in measured}
