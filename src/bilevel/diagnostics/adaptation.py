"""Fitting y with x frozen: `adapt` for unseen tasks, `refit` for the tasks of a run on all rows that may be used."""

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
from bilevel._core.averages import mean, worst
from bilevel._core.module import leaf, part
from bilevel._core.schedules import Rate, rate_at
from bilevel._core.types import Batch, Count, Tree
from bilevel.diagnostics.points import check_is_problem, start
from bilevel.lower.rules import Rule
from bilevel.lower.steps import Replay, descend, steps_of
from bilevel.problem import initial_point
from bilevel.problem.cross_fitting import pooled, whole_name
from bilevel.problem.per_task import PerTask, TaskValues, for_tasks
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Source
from bilevel.problem.task import Task, TaskStack, as_list
from bilevel.rates import curvature
from bilevel.rates.curvature import LowerCurvature


@dataclasses.dataclass(frozen=True, eq=False)
class Adaptation:
    """Tasks fitted to a given x.

    Attributes:
        y: every task's own variable, by name.
        losses: f_i(x, y_i) on all validation data, in the order of the tasks, as in a `Result`. NaN for a task that has
            no validation rows; `worst` and `mean` are then NaN too.
        test_losses: the same on all test data; None where a task has none.
        rates: the lower rate of every task in the last step.
    """

    y: TaskValues
    losses: np.ndarray
    test_losses: np.ndarray | None
    rates: np.ndarray

    @property
    def worst(self) -> float:
        """The largest validation loss."""
        return worst(self.losses)

    @property
    def mean(self) -> float:
        """The mean validation loss."""
        return float(mean(self.losses))

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
            said += f"; of the others: worst loss {worst(known):.5g}, mean {mean(known):.5g}" if known.size else ""
        if self.test_losses is None:
            return said
        return f"{said}; test worst {worst(self.test_losses):.5g}, mean {mean(self.test_losses):.5g}"


@part
class LowerFit:
    """The lower rule and its rate."""

    rule: Rule
    lr: Rate = leaf(default=None)

    def check(self) -> None:
        """Raises unless the rule is a function; only plain gradient steps have automatic rates."""
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
    x: Tree,
    tasks: Sequence[Task | TaskStack],
    steps: int = 1000,
    y: Tree = None,
    lower_rule: Rule = optax.sgd,
    lower_lr: Rate = None,
    seed: int = 0,
) -> Adaptation:
    """Fits unseen tasks: y_i <- y_i - rate_i grad_y g_i(x, y_i), `steps` times, with x fixed.

    The loss functions are those that all tasks of the problem share, or a task's own. Batches have the problem's size;
    if a task has fewer rows than a batch, it and the tasks stacked with it take all rows in every step.

    Args:
        problem: what x was learnt on.
        x: what the tasks share, for instance `result.x`.
        tasks: `bl.Task` and `bl.Task.stack(...)`; training rows are enough.
        steps: the number of lower steps.
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
    fit = LowerFit(lower_rule, lower_lr)
    fit.check()
    unseen, validated = problem_of(problem, tasks)
    key = jax.random.key(seed)
    x, y = start(unseen, x, y, jax.random.fold_in(key, 0))
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


class _FitState(NamedTuple):
    y: PerTask[Tree]
    optimiser: PerTask[optax.OptState]
    curvature: PerTask[LowerCurvature] | None
    rate: PerTask[jax.Array]


@jax.jit
def _run(
    fit: LowerFit, problem: Problem, x: Tree, y: PerTask[Tree], key: jax.Array, steps: Count
) -> tuple[PerTask[Tree], jax.Array]:
    first_key, key = jax.random.split(key)
    dtype = optax.tree.norm(x).dtype

    def rate_of(k: Any, known: PerTask[LowerCurvature] | None) -> PerTask[jax.Array]:
        if known is None:
            return problem.fill(rate_at(fit.lr, k), dtype)
        return for_tasks(lambda found: 1 / jnp.where(found.value > 0, found.value, 1), known)

    def one(k: jax.Array, at: _FitState) -> _FitState:
        drawn = problem.draw_lower(jax.random.fold_in(key, k))
        known = at.curvature
        if known is not None:
            known = curvature.follow_lower(problem, x, at.y, drawn, known)
        rate = rate_of(k, known)
        samples = jax.tree.map(lambda s: s[:, None], drawn)  # one step each
        replay = Replay(steps_of(at.y, at.optimiser, rate, samples), fit.rule, 1)
        return _FitState(*descend(problem, x, replay), known, rate)

    known = None if fit.lr is not None else curvature.lower(problem, x, y, first_key)
    first = _FitState(y, for_tasks(fit.rule(0.1).init, y), known, rate_of(0, known))
    end = jax.lax.fori_loop(0, steps, one, first)
    return end.y, problem.join(end.rate)


@jax.jit
def _evaluate(problem: Problem, x: Tree, y: PerTask[Tree]) -> tuple[jax.Array, jax.Array | None]:
    return problem.validation_losses(x, y), problem.test_losses(x, y)


def refit(
    problem: Problem,
    result: Any,
    rows: Sequence[str] = ("train", "validation"),
    steps: int = 1000,
    y: Tree = None,
    lower_rule: Rule = optax.sgd,
    lower_lr: Rate = None,
    seed: int = 0,
) -> Adaptation:
    """Fits every task's y on its training and validation rows together, with x fixed, for use after a run.

    While x is learnt, y must not see validation rows. Once x is fixed it may, and it becomes better. The tasks are
    those of the problem; the folds of a task that `bl.cross_fit` made become one task again, under its own name. Test
    rows are never fitted, and `test_losses` are the only losses that are reported.

    Args:
        problem: what x was learnt on.
        result: what `bl.solve` returns or one of its iterates, the fit starts at its y; or x alone.
        rows: the kinds of rows to fit on, for instance also "selection" where the tasks have such rows.
        steps: the number of lower steps.
        y: where they start, as for `solve`; None = the result's y, or with x alone each task's own.
        lower_rule: from a rate to an optax transformation.
        lower_lr: a number, a schedule, or None = 1/L_i for every task, L_i its measured curvature.
        seed: of everything random.

    >>> import jax.numpy as jnp
    >>> import bilevel as bl
    >>> def loss(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> task = bl.Task(jnp.array([0.0, 0.0]), jnp.array([3.0]), name="north", y=jnp.array(0.0))
    >>> round(float(bl.refit(bl.Problem(loss, loss, [task]), jnp.array(0.0)).y["north"]), 6)
    1.0
    """
    check_is_problem("refit", problem)
    known = not isinstance(result, type) and all(hasattr(result, name) for name in ("x", "y", "weights"))
    tasks: list[Task | TaskStack] = []
    starts: dict[str, Tree] = {}
    for task in tasks_of(problem):
        name, fold = whole_name(task.name)
        if fold > 1:
            continue  # the first fold has all rows of the task
        if known and y is None:
            starts[name] = result.y[task.name]
        whole = pooled("refit", task, rows, name)
        tasks.append(dataclasses.replace(task, name=name, train=whole, validation=None))
    x = result.x if known else result
    return adapt(problem, x, tasks, steps, starts or y, lower_rule, lower_lr, seed)


def problem_of(problem: Problem, tasks: object) -> tuple[Problem, np.ndarray]:
    """A problem of unseen tasks, with the functions, constraint and batches of the problem; which are validated."""
    tasks = as_list("adapt", tasks)
    first, functions = problem.groups[0], {}
    for level in ("upper", "lower"):
        functions[level] = getattr(first, level)
        several = any(getattr(group, level) is not functions[level] for group in problem.groups)
        if several and any(getattr(task, level, None) is None for task in tasks):
            raise ValueError(
                f"adapt(tasks=...) has a task without {level}, and the problem's own tasks differ in theirs: give "
                f"Task({level}=...)."
            )
    whole = [_with_validation(task) for task in tasks]
    unseen = Problem(**functions, tasks=whole, constraint=problem.constraint, lower_batch=1, upper_batch=1)
    groups = [dataclasses.replace(g, lower_batch=batch_within(g.train, first.lower_batch)) for g in unseen.groups]
    counts = [task.count if isinstance(task, TaskStack) else 1 for task in tasks]
    validated = np.repeat([task.validation is own.validation for task, own in zip(tasks, whole, strict=True)], counts)
    return unseen.replace(groups=tuple(groups)), validated


def _with_validation(task: Task | TaskStack) -> Task | TaskStack:
    """The task with validation rows, which f needs; losses on borrowed rows are not reported.

    Selection rows are dropped, as nothing is selected here: tasks may differ in whether they have any.
    """
    task = dataclasses.replace(task, selection=None)
    if task.validation is not None or task.train is None:
        return task
    if task.test is not None:
        return dataclasses.replace(task, validation=task.test)
    return dataclasses.replace(task, validation=task.train, upper=_nothing)  # f may not accept rows of g


def _nothing(x: Tree, y: Tree, batch: Batch) -> jax.Array:
    """0, or NaN if y has diverged."""
    return jnp.asarray(0 * optax.tree.sum(y))


def batch_within(source: Source, wanted: int | None) -> int | None:
    """The problem's batch size; None, for all the data, where a task has fewer rows."""
    if wanted is None and not source.finite:
        raise ValueError(
            "adapt(tasks=...) has a Generator, which is infinite, and the problem has no lower_batch: give it one."
        )
    enough = not source.finite or wanted is None or int(np.min(source.sizes())) >= wanted
    return wanted if enough else None


def tasks_of(problem: Problem) -> list[Task]:
    """The tasks of a problem in their order, as the user wrote them."""
    tasks: dict[int, Task] = {}
    for group in jax.device_get(problem.groups):  # in numpy, which is fast for thousands of tasks
        tasks |= {int(i): initial_point.task_of(problem, group, k) for k, i in enumerate(group.ids)}
    return [tasks[i] for i in range(problem.size)]
