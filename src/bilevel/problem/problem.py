"""The problem: what every task minimises, on which data, under which constraint on what they share.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

Users write f and g for one task and one batch. Tasks whose functions and shapes agree are stacked into a `Group`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel.constraints import Unconstrained
from bilevel.problem import stacking
from bilevel.problem.group import Group, Objective, UpperSample
from bilevel.problem.sources import Sample
from bilevel.problem.stacking import Task
from bilevel.problem.task_names import Names, TaskValues


class Grouped:
    """Tasks in groups of like ones, under one constraint: what every kind of problem is.

    Args:
        bundles: the fields of each group, as `stacking.gather` makes them.
        names: of all tasks.
        constraint: the set X of x; None = unconstrained.
    """

    calls: ClassVar[dict[str, str]] = {"upper": "upper(x, y, batch)", "lower": "lower(x, y, batch)"}  # in errors
    ranks: ClassVar[bool] = True  # whether a lower loss is a better iterate

    def __init__(self, bundles: Sequence[dict[str, Any]], names: Sequence[str], constraint: Any):
        if constraint is not None and (isinstance(constraint, type) or not hasattr(constraint, "project")):
            owner = type(self).__name__
            raise TypeError(f"{owner}(constraint=...) got {constraint!r}: it needs one of bl.constraints.")
        self.groups = tuple(Group(**bundle) for bundle in bundles)
        self.constraint = Unconstrained() if constraint is None else constraint
        self.names = Names(names)
        order = np.concatenate([np.asarray(g.ids) for g in self.groups])
        # Where the groups, one after the other, already are in the order of the tasks, nothing is moved.
        self.place = None if np.array_equal(order, np.arange(len(order))) else jnp.asarray(np.argsort(order))
        alike = len({stacking.shape_of(bundle) for bundle in bundles})
        if len(self.groups) - alike > 3:
            warnings.warn(
                f"{len(self.groups)} groups of tasks differ only by the identity of their functions; each is compiled "
                "on its own. Give like tasks the same function objects and put what differs into their data.",
                stacklevel=3,
            )

    @property
    def size(self) -> int:
        """How many tasks."""
        return len(self.names)

    @property
    def draws(self) -> bool:
        """Whether steps see batches rather than all the data, so that what they see is noisy."""
        return any(group.lower_batch is not None or group.upper_batch is not None for group in self.groups)

    @property
    def has_test(self) -> bool:
        """Whether every task brought test data."""
        return all(group.test is not None for group in self.groups)

    def join(self, vectors: Sequence[Any]) -> Any:
        """One stacked pytree per group -> one stacked pytree, in the order of the tasks."""
        whole = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *vectors) if len(vectors) > 1 else vectors[0]
        return whole if self.place is None else pytrees.index(whole, self.place)

    def draw_upper(self, key: jax.Array) -> tuple[UpperSample, ...]:
        """The samples of one evaluation of the upper level, for every group."""
        return tuple(group.draw_upper(key) for group in self.groups)

    def draw_lower(self, key: jax.Array) -> tuple[Sample, ...]:
        """Samples of training rows, for every group."""
        return tuple(group.draw_lower(key) for group in self.groups)

    def by_name(self, y: tuple) -> TaskValues:
        """Stacked values per group -> a mapping from task name to value."""
        return TaskValues(self.names, [group.ids for group in self.groups], y)

    def validation_losses(self, x: Any, y: tuple) -> jax.Array:
        """The tasks' losses on all validation data, in their order."""
        raise NotImplementedError

    def test_losses(self, x: Any, y: tuple) -> jax.Array | None:
        """The same on all test data; None where a task has none."""
        raise NotImplementedError

    @property
    def counted(self) -> str:
        """How many tasks and groups, in words."""
        groups = len(self.groups)
        return f"{self.size} task{'s' * (self.size != 1)} in {groups} group{'s' * (groups != 1)}"


@jax.tree_util.register_pytree_node_class
class Problem(Grouped):
    """A min-max multi-objective bilevel problem.

    Args:
        upper: f(x, y, batch), one task's loss on a batch of validation rows: a scalar, a mean over the rows.
        lower: g(x, y, batch), one task's loss on a batch of training rows: a scalar, strongly convex in y.
        tasks: the tasks, a mix of `Task` and `Task.stack(...)`.
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

    def __init__(
        self,
        upper: Objective,
        lower: Objective,
        tasks: Sequence[Task | stacking.TaskStack],
        constraint: Any = None,
        lower_batch: int | None = None,
        upper_batch: int | None = None,
    ):
        for name, function in (("upper", upper), ("lower", lower)):
            if not callable(function):
                raise TypeError(f"Problem({name}=...) got {function!r}: it needs a function of (x, y, batch).")
        bundles, names = stacking.gather(tasks, upper, lower, lower_batch, upper_batch)
        super().__init__(bundles, names, constraint)

    def rebatched(self, size: Callable[[int | None], int | None]) -> Problem:
        """The same problem with other batch sizes, each a function of what it was; None = all the data."""
        groups = tuple(
            dataclasses.replace(g, lower_batch=size(g.lower_batch), upper_batch=size(g.upper_batch))  # type: ignore
            for g in self.groups
        )
        return Problem.tree_unflatten(self.names, (groups, self.constraint, self.place))

    def validation_losses(self, x: Any, y: tuple) -> jax.Array:
        """f_i(x, y_i) on all validation data, in the order of the tasks."""
        return self.join([g.losses(g.upper, g.validation, x, yg) for g, yg in zip(self.groups, y, strict=True)])

    def test_losses(self, x: Any, y: tuple) -> jax.Array | None:
        """f_i(x, y_i) on all test data; None where a task has none."""
        if not self.has_test:
            return None
        return self.join([g.losses(g.upper, g.test, x, yg) for g, yg in zip(self.groups, y, strict=True)])  # type: ignore

    def __repr__(self) -> str:
        first = self.groups[0]
        return (
            f"Problem({self.counted}, constraint={self.constraint}, "
            f"lower_batch={first.lower_batch}, upper_batch={first.upper_batch})"
        )

    def tree_flatten(self) -> tuple:  # noqa: D102
        return (self.groups, self.constraint, self.place), self.names

    @classmethod
    def tree_unflatten(cls, names: Names, children: tuple) -> Problem:  # noqa: D102
        self = object.__new__(cls)
        self.groups, self.constraint, self.place = children
        self.names = names
        return self
