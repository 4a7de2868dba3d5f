"""Multi-block min-max bilevel problems: a maximisation inside each task, and the mean over the tasks outside.

    min over x in X of  (1/m) sum_i  max over a_i in A of  f_i(x, a_i, y_i*(x)),    y_i*(x) = argmin over y of g_i(x, y)

The maximised variable belongs to a task (a block): it is no weight on the tasks. It comes from writing a loss that is
no mean over rows as the maximum of one that is, as for the area under the ROC curve (`bl.problems.auc`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bilevel._core.module import assign, leaf, part, static
from bilevel._core.types import Batch, Tree
from bilevel.problem import initial_point
from bilevel.problem.constraints import Constraint, Unconstrained
from bilevel.problem.group import Group
from bilevel.problem.per_task import Names, PerTask
from bilevel.problem.problem import BaseProblem, common_fields
from bilevel.problem.stacking import Batches, stack_tasks
from bilevel.problem.task import Task, TaskStack, as_list


class BlockPoint(NamedTuple):
    """Values of one block."""

    y: Tree
    dual: Tree


@dataclasses.dataclass(frozen=True)
class WithDual:
    """f(x, dual, y, batch) where the groups of tasks expect a function of (x, point, batch)."""

    function: Callable

    def __call__(self, x: Tree, point: BlockPoint, batch: Batch) -> jax.Array:
        """f."""
        return self.function(x, point.dual, point.y, batch)


@dataclasses.dataclass(frozen=True)
class WithoutDual:
    """g(x, y, batch) where the groups of tasks expect a function of (x, point, batch)."""

    function: Callable

    def __call__(self, x: Tree, point: BlockPoint, batch: Batch) -> jax.Array:
        """g."""
        return self.function(x, point.y, batch)


@part
class MultiBlockProblem(BaseProblem):
    """A multi-block min-max bilevel problem, for `MMB`.

    Args:
        upper: f(x, dual, y, batch), one task's loss on a batch of validation rows: a scalar, a mean over the rows,
            strongly concave in dual.
        lower: g(x, y, batch), one task's loss on a batch of training rows: a scalar, strongly convex in y.
        tasks: a mix of `Task` and `Task.stack(...)`, with the functions of their own that differ.
        constraint: the set X of x, from `bl.constraints`; None = unconstrained.
        lower_batch: rows drawn for each lower evaluation; None = all the data.
        upper_batch: rows drawn for each upper evaluation; None = all the data.
        dual: where every task's dual variable starts, one pytree for all.
        dual_constraint: the set A of the dual variables; None = unconstrained.

    In a result, `y[name]` is a `BlockPoint` of y and dual, and the losses are f_i at the duals of that time.

    >>> def upper(x, dual, y, batch): return dual * jnp.mean(y - batch) - dual**2 / 2
    >>> def lower(x, y, batch): return jnp.mean((y - x * batch) ** 2)
    >>> MultiBlockProblem(upper, lower, [Task(jnp.ones(3), jnp.ones(2))], dual=0.0)
    MultiBlockProblem(1 task in 1 group, constraint=Unconstrained(), lower_batch=None, upper_batch=None)
    """

    groups: tuple[Group, ...] = leaf()
    constraint: Constraint = leaf()
    place: jax.Array | None = leaf()
    dual: Tree = leaf()
    dual_constraint: Constraint = leaf()
    names: Names = static(by=len)

    comparable_losses: ClassVar[bool] = False  # a loss is low where its dual is not yet at its maximum
    calls: ClassVar[dict[str, str]] = {"upper": "upper(x, dual, y, batch)", "lower": "lower(x, y, batch)"}

    def __init__(
        self,
        upper: Callable[..., jax.Array],
        lower: Callable[..., jax.Array],
        tasks: Task | TaskStack | Sequence[Task | TaskStack],
        constraint: Constraint | None = None,
        lower_batch: int | None = None,
        upper_batch: int | None = None,
        *,
        dual: Tree,
        dual_constraint: Constraint | None = None,
    ):
        owner = "MultiBlockProblem"
        for name, function, takes in (("upper", upper, "(x, dual, y, batch)"), ("lower", lower, "(x, y, batch)")):
            if not callable(function):
                raise TypeError(f"{owner}({name}=...) got {function!r}: it needs a function of {takes}.")
        if dual_constraint is not None and (
            isinstance(dual_constraint, type) or not hasattr(dual_constraint, "project")
        ):
            raise TypeError(f"{owner}(dual_constraint=...) got {dual_constraint!r}: it needs one of bl.constraints.")
        own, batches = [_with_dual(task) for task in as_list(owner, tasks)], Batches(lower_batch, upper_batch)
        stacked = stack_tasks(owner, own, WithDual(upper), WithoutDual(lower), batches)
        assign(
            self,
            **common_fields(owner, stacked, constraint),
            dual=initial_point.arrays(dual, f"{owner}(dual)"),
            dual_constraint=Unconstrained() if dual_constraint is None else dual_constraint,
        )

    def starting_y(self, y: Tree, key: jax.Array) -> PerTask[BlockPoint]:
        """The tasks' y, and the first duals."""
        return self.points(initial_point.lower_points(self, y, key))

    def points(self, y: PerTask[Tree]) -> PerTask[BlockPoint]:
        """y and the first dual variable of every task."""

        def stacked(size: int) -> Tree:
            return jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), self.dual)

        return PerTask(tuple(BlockPoint(y_g, stacked(g.size)) for g, y_g in zip(self.groups, y, strict=True)))

    def validation_losses(self, x: Tree, y: PerTask[BlockPoint]) -> jax.Array:
        """f_i(x, dual_i, y_i) on all validation data, in the order of the tasks."""
        return self.losses(x, y, "validation")

    def __repr__(self) -> str:
        first = self.groups[0]
        return (
            f"MultiBlockProblem({self.counted}, constraint={self.constraint}, "
            f"lower_batch={first.lower_batch}, upper_batch={first.upper_batch})"
        )


def _with_dual(task: Task | TaskStack) -> Task | TaskStack:
    """A task whose own functions fit into a group."""
    upper = None if task.upper is None else WithDual(task.upper)
    return dataclasses.replace(task, upper=upper, lower=None if task.lower is None else WithoutDual(task.lower))
