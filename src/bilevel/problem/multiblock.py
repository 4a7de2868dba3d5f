"""Multi-block min-max bilevel problems: a maximisation inside each task, and the mean over the tasks outside.

    min over x in X of  (1/m) sum_i  max over a_i in A of  f_i(x, a_i, y_i*(x)),    y_i*(x) = argmin over y of g_i(x, y)

The maximised variable belongs to a task (a block): it is no weight on the tasks. It comes from writing a loss that is
no mean over rows as the maximum of one that is, as for the area under the ROC curve (`bl.problems.auc`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.constraints import Unconstrained
from bilevel.problem import initial_point, stacking
from bilevel.problem.problem import Grouped
from bilevel.problem.stacking import Task
from bilevel.problem.task_names import Names


class BlockPoint(NamedTuple):
    """What belongs to one block."""

    y: Any
    dual: Any


@dataclasses.dataclass(frozen=True)
class WithDual:
    """f(x, dual, y, batch) where the groups of tasks expect a function of (x, point, batch)."""

    function: Callable

    def __call__(self, x: Any, point: BlockPoint, batch: Any) -> jax.Array:
        """f."""
        return self.function(x, point.dual, point.y, batch)


@dataclasses.dataclass(frozen=True)
class WithoutDual:
    """g(x, y, batch) where the groups of tasks expect a function of (x, point, batch)."""

    function: Callable

    def __call__(self, x: Any, point: BlockPoint, batch: Any) -> jax.Array:
        """g."""
        return self.function(x, point.y, batch)


@jax.tree_util.register_pytree_node_class
class MultiBlockProblem(Grouped):
    """A multi-block min-max bilevel problem, for `MMB`.

    Args:
        upper: f(x, dual, y, batch), one task's loss on a batch of validation rows: a scalar, a mean over the rows,
            strongly concave in dual.
        lower: g(x, y, batch), one task's loss on a batch of training rows: a scalar, strongly convex in y.
        tasks: a mix of `Task` and `Task.stack(...)`, with the functions of their own that differ.
        dual: where every task's dual variable starts, one pytree for all.
        dual_constraint: the set A of the dual variables, from `bl.constraints`; None = unconstrained.
        constraint: the set X of x; None = unconstrained.
        lower_batch: rows drawn for each lower evaluation; None = all the data.
        upper_batch: rows drawn for each upper evaluation; None = all the data.

    In a result, `y[name]` is a `BlockPoint` of y and dual, and the losses are f_i at the duals of that time.

    >>> def upper(x, dual, y, batch): return dual * jnp.mean(y - batch) - dual**2 / 2
    >>> def lower(x, y, batch): return jnp.mean((y - x * batch) ** 2)
    >>> MultiBlockProblem(upper, lower, [Task(jnp.ones(3), jnp.ones(2))], dual=0.0)
    MultiBlockProblem(1 task in 1 group, constraint=Unconstrained(), lower_batch=None, upper_batch=None)
    """

    ranks: ClassVar[bool] = False  # a loss is low where its dual is not yet at its maximum
    calls: ClassVar[dict[str, str]] = {"upper": "upper(x, dual, y, batch)", "lower": "lower(x, y, batch)"}

    def __init__(
        self,
        upper: Callable,
        lower: Callable,
        tasks: Sequence[Task | stacking.TaskStack],
        dual: Any,
        dual_constraint: Any = None,
        constraint: Any = None,
        lower_batch: int | None = None,
        upper_batch: int | None = None,
    ):
        owner = "MultiBlockProblem"
        for name, function, takes in (("upper", upper, "(x, dual, y, batch)"), ("lower", lower, "(x, y, batch)")):
            if not callable(function):
                raise TypeError(f"{owner}({name}=...) got {function!r}: it needs a function of {takes}.")
        if dual_constraint is not None and (
            isinstance(dual_constraint, type) or not hasattr(dual_constraint, "project")
        ):
            raise TypeError(f"{owner}(dual_constraint=...) got {dual_constraint!r}: it needs one of bl.constraints.")
        functions = WithDual(upper), WithoutDual(lower)
        tasks = [tasks] if isinstance(tasks, (Task, stacking.TaskStack)) else tasks
        own = [_with_dual(task) for task in tasks] if isinstance(tasks, Iterable) else tasks
        bundles, names = stacking.gather(own, *functions, lower_batch, upper_batch, owner)
        super().__init__(bundles, names, constraint)
        self.dual = initial_point.arrays(dual, f"{owner}(dual)")
        self.dual_constraint = Unconstrained() if dual_constraint is None else dual_constraint

    def points(self, y: tuple) -> tuple[BlockPoint, ...]:
        """y and the first duals of every block, stacked, per group."""

        def stacked(size: int) -> Any:
            return jax.tree.map(lambda a: jnp.broadcast_to(a, (size, *a.shape)), self.dual)

        return tuple(BlockPoint(yg, stacked(group.size)) for group, yg in zip(self.groups, y, strict=True))

    def validation_losses(self, x: Any, y: tuple) -> jax.Array:
        """f_i(x, dual_i, y_i) on all validation data, in the order of the tasks."""
        return self.join([g.losses(g.upper, g.validation, x, p) for g, p in zip(self.groups, y, strict=True)])

    def test_losses(self, x: Any, y: tuple) -> jax.Array | None:
        """f_i(x, dual_i, y_i) on all test data; None where a task has none."""
        if not self.has_test:
            return None
        return self.join([g.losses(g.upper, g.test, x, p) for g, p in zip(self.groups, y, strict=True)])  # type: ignore

    def __repr__(self) -> str:
        first = self.groups[0]
        return (
            f"MultiBlockProblem({self.counted}, constraint={self.constraint}, "
            f"lower_batch={first.lower_batch}, upper_batch={first.upper_batch})"
        )

    def tree_flatten(self) -> tuple:  # noqa: D102
        return (self.groups, self.constraint, self.place, self.dual, self.dual_constraint), self.names

    @classmethod
    def tree_unflatten(cls, names: Names, children: tuple) -> MultiBlockProblem:  # noqa: D102
        self = object.__new__(cls)
        self.groups, self.constraint, self.place, self.dual, self.dual_constraint = children
        self.names = names
        return self


def _with_dual(task: Any) -> Any:
    """A task whose own functions fit into a group; whatever is no task is left to be refused."""
    if not isinstance(task, (Task, stacking.TaskStack)):
        return task
    upper = None if task.upper is None else WithDual(task.upper)
    return dataclasses.replace(task, upper=upper, lower=None if task.lower is None else WithoutDual(task.lower))
