"""Every task's y fitted again, on all rows that may be used, with x as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import optax

from bilevel._core.schedules import Rate
from bilevel.diagnostics.adaptation import Adaptation, adapt
from bilevel.diagnostics.points import check_is_problem
from bilevel.problem import initial_point
from bilevel.problem.cross_fitting import pooled, whole_name
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task, TaskStack
from bilevel.rules.base import Rule


def refit(
    problem: Problem,
    result: Any,
    rows: Sequence[str] = ("train", "validation"),
    steps: int = 1000,
    y: Any = None,
    lower_rule: Rule = optax.sgd,
    lower_lr: Rate = None,
    seed: int = 0,
) -> Adaptation:
    """Fits every task's y on its training and validation rows together, with x fixed: what is used after a run.

    While x is learnt, validation rows must not be seen by y. Once x is fixed they may be, and y is the better for it.
    The tasks are those of the problem; of a task that `bl.cross_fit` has made folds of there is one again, under its
    own name. Test rows are never fitted: the losses there (`test_losses`) say what was reached; there are no others.

    Args:
        problem: what x was learnt on.
        result: what `bl.solve` returns or one of its iterates, whose y are where the fit starts; or x alone.
        rows: what is fitted on, for instance also "selection" rows, where the tasks have them.
        steps: how many lower steps.
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
    starts: dict[str, Any] = {}
    for task in tasks_of(problem):
        name, fold = whole_name(task.name)
        if fold > 1:
            continue  # the first has all of the task's rows too
        if known and y is None:
            starts[name] = result.y[task.name]
        whole = pooled("refit", task, rows, name)
        tasks.append(dataclasses.replace(task, name=name, train=whole, validation=None))
    x = result.x if known else result
    return adapt(problem, x, tasks, steps, starts or y, lower_rule, lower_lr, seed)


def tasks_of(problem: Problem) -> list[Task]:
    """The tasks of a problem in their order, as their user wrote them."""
    tasks: dict[int, Task] = {}
    for group in jax.device_get(problem.groups):  # with numpy, which takes thousands of tasks in the time of a few
        tasks |= {int(i): initial_point.task_of(problem, group, k) for k, i in enumerate(group.ids)}
    return [tasks[i] for i in range(problem.size)]
