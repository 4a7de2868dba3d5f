"""Unseen tasks: x frozen, y fitted."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel.diagnostics.points import check_is_problem
from bilevel.diagnostics.unseen import problem_of
from bilevel.oracles.lower import Replay, descend, steps_of
from bilevel.problem import findings, initial_point
from bilevel.problem.per_task import PerTask, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task, TaskStack
from bilevel.problem.task_names import TaskValues
from bilevel.rates import curvature
from bilevel.rates.curvature import LowerCurvature
from bilevel.rules.base import Rule


@dataclasses.dataclass(frozen=True, eq=False)
class Adaptation:
    """Tasks fitted to a given x.

    Attributes:
        y: every task's own variable, by name.
        losses: f_i(x, y_i) on all validation data, in the order of the tasks, as in a `Result`; NaN for a task that has
            no validation rows, and then also `worst` and `mean`.
        test_losses: on all test data, likewise; None where a task has none.
        rates: the lower rate of every task in the last step, likewise.
    """

    y: TaskValues
    losses: np.ndarray
    test_losses: np.ndarray | None
    rates: np.ndarray

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return float(np.max(self.losses))

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(np.mean(self.losses))

    @property
    def worst_task(self) -> str:
        """The name of the task with the largest validation loss."""
        return self.y.names[int(np.argmax(self.losses))]

    def __str__(self) -> str:
        known = self.losses[~np.isnan(self.losses)]
        said = f"{len(self.losses)} tasks"
        if known.size == self.losses.size:
            said += f": worst loss {self.worst:.5g} ({self.worst_task!r}), mean {self.mean:.5g}"
        else:
            said += f", {self.losses.size - known.size} without a validation loss"
            said += f"; of the others: worst loss {np.max(known):.5g}, mean {np.mean(known):.5g}" if known.size else ""
        if self.test_losses is None:
            return said
        return f"{said}; test worst {np.max(self.test_losses):.5g}, mean {np.mean(self.test_losses):.5g}"


@part
class Fit:
    """How y is fitted."""

    rule: Rule
    lr: Rate = leaf(default=None)

    def check(self) -> None:
        """A rule is a function, and automatic rates are for plain gradient steps."""
        if not callable(self.rule):
            raise TypeError(
                f"adapt(lower_rule=...) got {self.rule!r}: it needs a function from a rate to a transformation, such "
                "as optax.sgd."
            )
        values.rate("lower_lr", self.lr, of="adapt")
        if self.lr is None and self.rule is not optax.sgd:
            raise ValueError("adapt(lower_lr=None) is chosen for optax.sgd only: with another lower_rule, give a rate.")


def adapt(
    problem: Problem,
    x: Any,
    tasks: Sequence[Task | TaskStack],
    steps: int = 1000,
    y: Any = None,
    lower_rule: Rule = optax.sgd,
    lower_lr: Rate = None,
    seed: int = 0,
) -> Adaptation:
    """Fits unseen tasks: y_i <- y_i - rate_i grad_y g_i(x, y_i), `steps` times, with x fixed.

    The losses are those that all tasks of the problem share, or a task's own, and so are the batches; a task with fewer
    rows than a batch takes all of them in every step, together with the tasks like it.

    Args:
        problem: what x was learnt on.
        x: what the tasks share, for instance `result.x`.
        tasks: `bl.Task` and `bl.Task.stack(...)`; they need training rows only.
        steps: how many lower steps.
        y: where they start, as for `solve`; None = each task has its own.
        lower_rule: from a rate to an optax transformation.
        lower_lr: a number, a schedule, or None = 1/L_i for every task, L_i its measured curvature.
        seed: of everything random.

    >>> import jax.numpy as jnp
    >>> import bilevel as bl
    >>> known = bl.problems.shrinkage()
    >>> new = bl.Task(train=jnp.array([3.0]), validation=jnp.array([1.0]), y=jnp.array(0.0), name="new")
    >>> adapted = bl.adapt(known.problem, jnp.array(0.0), [new], steps=50)
    >>> round(float(adapted.y["new"]), 4), round(adapted.worst, 4)
    (1.5, 0.125)
    """
    check_is_problem("adapt", problem)
    values.whole("steps", steps, of="adapt")
    values.whole("seed", seed, least=0, of="adapt")
    fit = Fit(lower_rule, lower_lr)
    fit.check()
    unseen, validated = problem_of(problem, tasks)
    key = jax.random.key(seed)
    x = initial_point.arrays(x, "x")
    y = initial_point.lower_points(unseen, y, jax.random.fold_in(key, 0))
    findings.raise_first(findings.at_start(unseen, x, y))

    y, rate = _run(fit, unseen, x, y, jax.random.fold_in(key, 1), steps)
    validation, test = _evaluate(unseen, x, y)
    losses, rates = np.asarray(validation), np.asarray(rate)
    shown = np.where(validated, losses, np.nan)
    adapted = Adaptation(unseen.by_name(y), shown, None if test is None else np.asarray(test), rates)
    if not np.all(np.isfinite(losses)):
        i = int(np.argmin(np.isfinite(losses)))
        warnings.warn(
            f"adapt diverged: the loss of task {unseen.names[i]!r} became {losses[i]}. Try a smaller lower_lr (it was "
            f"{rates[i]:.3g}), or None to have it chosen.",
            stacklevel=2,
        )
    return adapted


class _Fitting(NamedTuple):
    """Where the lower steps are."""

    y: PerTask[Any]
    optimiser: PerTask[optax.OptState]
    curvature: PerTask[LowerCurvature] | None
    rate: PerTask[jax.Array]


@jax.jit
def _run(
    fit: Fit, problem: Problem, x: Any, y: PerTask[Any], key: jax.Array, steps: Any
) -> tuple[PerTask[Any], jax.Array]:
    """y after the steps, and the rates of the last one."""
    first_key, key = jax.random.split(key)
    dtype = optax.tree.norm(x).dtype

    def rate_of(k: Any, known: PerTask[LowerCurvature] | None) -> PerTask[jax.Array]:
        if known is None:
            return problem.fill(rate_at(fit.lr, k), dtype)
        return for_tasks(lambda found: 1 / jnp.where(found.value > 0, found.value, 1), known)

    def one(k: Any, at: _Fitting) -> _Fitting:
        drawn = problem.draw_lower(jax.random.fold_in(key, k))
        known = at.curvature
        if known is not None:
            known = curvature.follow_lower(problem, x, at.y, drawn, known)
        rate = rate_of(k, known)
        samples = jax.tree.map(lambda s: s[:, None], drawn)  # one step each
        replay = Replay(steps_of(at.y, at.optimiser, rate, samples), fit.rule, 1)
        return _Fitting(*descend(problem, x, replay), known, rate)

    known = None if fit.lr is not None else curvature.lower(problem, x, y, first_key)
    start = _Fitting(y, for_tasks(fit.rule(0.1).init, y), known, rate_of(0, known))
    end = jax.lax.fori_loop(0, steps, one, start)
    return end.y, problem.join(end.rate)


@jax.jit
def _evaluate(problem: Problem, x: Any, y: PerTask[Any]) -> tuple[jax.Array, jax.Array | None]:
    return problem.validation_losses(x, y), problem.test_losses(x, y)
