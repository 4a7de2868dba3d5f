"""The problem: what every task minimises, on which data, under which constraint on what they share.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

Users write f and g for one task and one batch. Tasks whose functions and shapes agree are stacked into a `Group`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from bilevel._core.module import assign, leaf, part, static
from bilevel.constraints.base import Constraint
from bilevel.problem import initial_point
from bilevel.problem.base import BaseProblem, common_fields
from bilevel.problem.distribution import TaskDistribution
from bilevel.problem.group import Group
from bilevel.problem.per_task import PerTask
from bilevel.problem.stacking import Batches, stack_tasks
from bilevel.problem.task import Task, TaskStack
from bilevel.problem.task_names import Names

X = TypeVar("X")
Y = TypeVar("Y")
BatchT = TypeVar("BatchT")


@part
class Problem(BaseProblem):
    """A min-max multi-objective bilevel problem.

    Args:
        upper: f(x, y, batch), one task's loss on a batch of validation rows: a scalar, a mean over the rows.
        lower: g(x, y, batch), one task's loss on a batch of training rows: a scalar, strongly convex in y.
        tasks: the tasks, a mix of `Task` and `Task.stack(...)`; or a `TaskDistribution`, and then the tasks below are
            those that a run is evaluated on.
        constraint: the set X of x, from `bl.constraints`; None = unconstrained.
        lower_batch: rows drawn for each lower evaluation; None = all the data.
        upper_batch: rows drawn for each upper evaluation; None = all the data.

    A user's own `jax.custom_vjp` over x makes the shared direction hold one copy of x per task, because its backward
    rule is vmapped; everything built of ordinary JAX operations needs one copy only.

    >>> import jax.numpy as jnp
    >>> def upper(x, y, batch): return jnp.mean((y - batch) ** 2)
    >>> def lower(x, y, batch): return jnp.mean((y - x * batch) ** 2)
    >>> problem = Problem(upper, lower, [Task(jnp.ones(3), jnp.ones(2)), Task(jnp.zeros(4), jnp.ones(2))])
    >>> problem
    Problem(2 tasks in 1 group, constraint=Unconstrained(), lower_batch=None, upper_batch=None)
    """

    groups: tuple[Group, ...] = leaf()
    constraint: Constraint = leaf()
    place: jax.Array | None = leaf()
    names: Names = static(by=len)
    distribution: TaskDistribution | None = leaf(default=None)

    def __init__(
        self,
        upper: Callable[[X, Y, BatchT], jax.Array],
        lower: Callable[[X, Y, BatchT], jax.Array],
        tasks: Task | TaskStack | TaskDistribution | Sequence[Task | TaskStack],
        constraint: Constraint | None = None,
        lower_batch: int | None = None,
        upper_batch: int | None = None,
    ):
        for name, function in (("upper", upper), ("lower", lower)):
            if not callable(function):
                raise TypeError(f"Problem({name}=...) got {function!r}: it needs a function of (x, y, batch).")
        distribution = tasks if isinstance(tasks, TaskDistribution) else None
        known: Any = tasks if distribution is None else distribution.sample(distribution.evaluation, distribution.seed)
        stacked = stack_tasks("Problem", known, upper, lower, Batches(lower_batch, upper_batch))
        assign(self, **common_fields("Problem", stacked, constraint), distribution=distribution)

    def starting_y(self, y: Any, key: jax.Array) -> PerTask[Any]:
        """As `initial_point.lower_points` has it; of a distribution, one point for all tasks."""
        if self.distribution is not None:
            initial_point.check_common(y, self.names)
        return initial_point.lower_points(self, y, key)

    @property
    def fits_validation(self) -> bool:
        """Not of a distribution, where no step sees the tasks of the evaluation."""
        return self.distribution is None

    def rebatched(self, size: Callable[[int | None], int | None]) -> Problem:
        """The same problem with other batch sizes, each a function of what it was; None = all the data."""
        return self.replace(
            groups=tuple(
                dataclasses.replace(g, lower_batch=size(g.lower_batch), upper_batch=size(g.upper_batch))
                for g in self.groups
            )
        )

    def validation_losses(self, x: Any, y: PerTask[Any]) -> jax.Array:
        """f_i(x, y_i) on all validation data, in the order of the tasks."""
        return self.losses(x, y, "validation")

    def __repr__(self) -> str:
        first = self.groups[0]
        tasks = self.counted if self.distribution is None else f"a distribution, evaluated on {self.size} tasks"
        return (
            f"Problem({tasks}, constraint={self.constraint}, "
            f"lower_batch={first.lower_batch}, upper_batch={first.upper_batch})"
        )
