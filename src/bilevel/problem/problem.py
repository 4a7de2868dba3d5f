"""The problem: what every task minimises, on which data, under which constraint on what they share.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

Users write f and g for one task and one batch. Tasks whose functions and shapes agree are stacked into a `Group`.
`BaseProblem` is what every kind of problem is: tasks in groups of like ones, under one constraint on x.
"""

from __future__ import annotations

import abc
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bilevel._core import module, pytrees
from bilevel._core.module import assign, leaf, part, static
from bilevel._core.types import T, Tree, X, Y
from bilevel.problem import initial_point
from bilevel.problem.constraints import Constraint, Unconstrained
from bilevel.problem.distribution import TaskDistribution
from bilevel.problem.group import Group, UpperSample
from bilevel.problem.on_devices import gathered, own_rows, shared, weighted_sum
from bilevel.problem.per_task import Everywhere, Names, PerTask, TaskValues
from bilevel.problem.sources import Sample
from bilevel.problem.stacking import Batches, Stacked, shapes_of, stack_tasks
from bilevel.problem.task import ROLES, Task, TaskStack

BatchT = TypeVar("BatchT")

GLIMPSED = 1024  # tasks


class BaseProblem(abc.ABC, Generic[X, Y]):
    """Tasks in groups of like ones, under one constraint. A kind of problem is a part that inherits this.

    Attributes:
        groups: like tasks, stacked.
        constraint: the set X of x.
        place: where each task is among the groups, one after the other; None where that is their order already.
        names: of all tasks. To what is compiled only their number matters.
    """

    groups: tuple[Group, ...]
    constraint: Constraint
    place: jax.Array | None
    names: Names

    calls: ClassVar[dict[str, str]] = {"upper": "upper(x, y, batch)", "lower": "lower(x, y, batch)"}  # in errors
    comparable_losses: ClassVar[bool] = True  # whether a lower loss is a better iterate

    @abc.abstractmethod
    def validation_losses(self, x: X, y: PerTask[Y]) -> jax.Array:
        """The tasks' losses on all validation data, in their order."""

    def selection_losses(self, x: X, y: PerTask[Y]) -> jax.Array | None:
        """The tasks' losses on all selection data; None if they have none."""
        return self.held_out_losses(x, y, "selection") if self.has_selection else None

    def test_losses(self, x: X, y: PerTask[Y]) -> jax.Array | None:
        """The tasks' losses on all test data; None if a task has none."""
        return self.held_out_losses(x, y, "test") if self.has_test else None

    def held_out_losses(self, x: X, y: PerTask[Y], role: str) -> jax.Array:
        """Validation losses computed on the rows of another role, "selection" or "test"."""
        swapped = tuple(dataclasses.replace(group, validation=getattr(group, role)) for group in self.groups)
        return self.replace(groups=swapped).validation_losses(x, y)

    @abc.abstractmethod
    def starting_y(self, y: Tree, key: jax.Array) -> PerTask[Y]:
        """Every task's y at the start, from what the user gave to `solve`."""

    def replace(self, **fields: object) -> Self:
        """The same problem with other fields."""
        return module.replace(self, **fields)

    # ------------------------------------------------------------------ what it consists of

    @property
    def size(self) -> int:
        """How many tasks."""
        return len(self.names)

    @property
    def is_stochastic(self) -> bool:
        """Whether steps see batches rather than all the data, so that what they see is noisy."""
        return any(group.lower_batch is not None or group.upper_batch is not None for group in self.groups)

    @property
    def has_selection(self) -> bool:
        """Whether every task has rows for selection."""
        return all(group.selection is not None for group in self.groups)

    @property
    def fits_validation(self) -> bool:
        """Whether x is fitted to the validation rows, so that their losses say little about other rows."""
        return True

    @property
    def has_test(self) -> bool:
        """Whether every task has test data."""
        return all(group.test is not None for group in self.groups)

    @property
    def counted(self) -> str:
        """How many tasks and groups, in words."""
        groups = len(self.groups)
        return f"{self.size} task{'s' * (self.size != 1)} in {groups} group{'s' * (groups != 1)}"

    # ------------------------------------------------------------------ tasks and groups

    def each(self, function: Callable[..., T], *arguments: PerTask[Tree] | None) -> PerTask[T]:
        """`function(task, *arguments)` for every task, each with its own arguments; None is None for all."""
        own = [[None if a is None else a.groups[g] for a in arguments] for g in range(len(self.groups))]
        return PerTask(tuple(group.each(function, *a) for group, a in zip(self.groups, own, strict=True)))

    def join(self, values: PerTask[T]) -> T:
        """One pytree, stacked in the order of the tasks."""
        own, on = values.groups, self.groups[0].on
        if on is not None:  # the groups are on devices all together
            own = [gathered(value, group.on) for value, group in zip(values, self.groups, strict=True)]
        whole = own[0] if len(own) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *own)
        whole = whole if self.place is None else pytrees.index(whole, self.place)
        if on is None:
            return whole
        return jax.tree.map(lambda leaf: shared(leaf, on) if leaf.ndim == 1 else leaf, whole)

    def split(self, ordered: T) -> PerTask[T]:
        """A pytree that is stacked in the order of the tasks, per group: the inverse of `join`."""
        ordered = shared(ordered, self.groups[0].on)
        own = [(group, part) for group, part in zip(self.groups, self._parts(), strict=True)]
        if self.place is not None:  # each device looks up its own
            own = [(group, own_rows(part, group.on)) for group, part in own]
        return PerTask(tuple(own_rows(pytrees.index(ordered, part), group.on) for group, part in own))

    def split_everywhere(self, ordered: T) -> Everywhere[T]:
        """`split` with all rows on every device."""
        return Everywhere(tuple(pytrees.index(ordered, part) for part in self._parts()))

    def _parts(self) -> list[Tree]:
        """The places of each group's tasks in the order of all tasks."""
        if self.place is None:  # a group's tasks stand together; its ids may be those of a larger problem
            ends = np.cumsum([group.size for group in self.groups])
            return [slice(end - group.size, end) for group, end in zip(self.groups, ends, strict=True)]
        return [group.ids for group in self.groups]

    def weighted_sum(self, weights: jax.Array, values: PerTask[T]) -> T:
        """sum_i weights_i values_i, of pytrees."""
        own = zip(self.split(weights), values, self.groups, strict=True)
        sums = [weighted_sum(weight, value, group.on) for weight, value, group in own]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *sums)

    def fill(self, value: Tree, dtype: DTypeLike) -> PerTask[jax.Array]:
        """One number for every task."""
        return PerTask(tuple(jnp.full(group.size, value, dtype) for group in self.groups))

    def keys(self, key: jax.Array) -> PerTask[jax.Array]:
        """A key for every task."""
        return PerTask(tuple(group.keys(key) for group in self.groups))

    def draw_upper(self, key: jax.Array) -> PerTask[UpperSample]:
        """The samples of one evaluation of the upper level, for every task."""
        return PerTask(tuple(group.draw_upper(key) for group in self.groups))

    def draw_lower(self, key: jax.Array) -> PerTask[Sample]:
        """Samples of training rows, for every task."""
        return PerTask(tuple(group.draw_lower(key) for group in self.groups))

    def glimpse(self, y: PerTask[Y], files_only: bool = True) -> tuple[Self, PerTask[Y]]:
        """Some tasks of groups whose rows are not in memory, and their y: for checks that must not read all of them.

        With `files_only=False`, of all large groups: for checks of functions, which like tasks share.
        """
        chosen = [_glimpsed(group, files_only) for group in self.groups]
        groups = [g if i is None else g.chosen_whole(i) for g, i in zip(self.groups, chosen, strict=True)]
        own = [y_g if i is None else pytrees.index(y_g, i) for y_g, i in zip(y, chosen, strict=True)]
        return self.replace(groups=tuple(groups)), PerTask(tuple(own))

    @property
    def held(self) -> bool:
        """Whether the rows of all tasks are in memory."""
        return all(getattr(group, role) is None or getattr(group, role).held for group in self.groups for role in ROLES)

    def in_memory(self) -> Self:
        """The problem with rows of loaders read into memory; rows in files stay there."""
        return self.replace(groups=tuple(group.in_memory() for group in self.groups))

    def by_name(self, values: PerTask[T]) -> TaskValues[T]:
        """A mapping from task name to value."""
        return TaskValues(self.names, [group.ids for group in self.groups], values.groups)

    def losses(self, x: X, y: PerTask[Y], role: str, function: Callable[..., jax.Array] | None = None) -> jax.Array:
        """f_i(x, y_i), or another function, on all data of a role, such as "validation"; in the order of tasks."""
        rows = zip(self.groups, y, strict=True)
        return self.join(PerTask(tuple(g.losses(function or g.upper, getattr(g, role), x, y_g) for g, y_g in rows)))


def _glimpsed(group: Group, files_only: bool) -> jax.Array | None:
    """The places of `GLIMPSED` tasks, evenly spread, of a group with rows not in memory, or of any; None = all."""
    sources = [source for role in ROLES if (source := getattr(group, role)) is not None]
    held = all(source.held for source in sources)
    if held and (files_only or group.size <= GLIMPSED):
        return None
    count = min(GLIMPSED, group.size)
    return jnp.asarray(np.arange(count) * (group.size - 1) // max(count - 1, 1))


def common_fields(owner: str, stacked: Stacked, constraint: Constraint | None) -> dict[str, object]:
    """The fields of a `BaseProblem`; warns of groups that could have been one."""
    if constraint is not None and (isinstance(constraint, type) or not hasattr(constraint, "project")):
        raise TypeError(f"{owner}(constraint=...) got {constraint!r}: it needs one of bl.constraints.")
    groups, names = stacked
    order = np.concatenate([np.asarray(group.ids) for group in groups])
    in_order = np.array_equal(order, np.arange(len(order)))
    if len(groups) - len(set(map(shapes_of, groups))) > 3:
        warnings.warn(
            f"{len(groups)} groups of tasks differ only by the identity of their functions; each is compiled on its "
            "own. Give like tasks the same function objects and put what differs into their data.",
            stacklevel=3,
        )
    return {
        "groups": groups,
        "constraint": Unconstrained() if constraint is None else constraint,
        "place": None if in_order else jnp.asarray(np.argsort(order)),
        "names": Names(names),
    }


@part
class Problem(BaseProblem[X, Y]):
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
        known: Tree = tasks if distribution is None else distribution.sample(distribution.evaluation, distribution.seed)
        stacked = stack_tasks("Problem", known, upper, lower, Batches(lower_batch, upper_batch))
        assign(self, **common_fields("Problem", stacked, constraint), distribution=distribution)

    def starting_y(self, y: Tree, key: jax.Array) -> PerTask[Y]:
        """As `initial_point.lower_points` has it; of a distribution, one point for all tasks."""
        if self.distribution is not None:
            initial_point.check_common(y, self.names)
        return initial_point.lower_points(self, y, key)

    @property
    def fits_validation(self) -> bool:
        """False for a distribution, because no step sees the tasks of the evaluation."""
        return self.distribution is None

    def rebatched(self, size: Callable[[int | None], int | None]) -> Self:
        """The same problem with other batch sizes, each a function of what it was; None = all the data."""
        return self.replace(
            groups=tuple(
                dataclasses.replace(g, lower_batch=size(g.lower_batch), upper_batch=size(g.upper_batch))
                for g in self.groups
            )
        )

    def validation_losses(self, x: X, y: PerTask[Y]) -> jax.Array:
        """f_i(x, y_i) on all validation data, in the order of the tasks."""
        return self.losses(x, y, "validation")

    def __repr__(self) -> str:
        first = self.groups[0]
        tasks = self.counted if self.distribution is None else f"a distribution, evaluated on {self.size} tasks"
        return (
            f"Problem({tasks}, constraint={self.constraint}, "
            f"lower_batch={first.lower_batch}, upper_batch={first.upper_batch})"
        )
