"""Values that belong to tasks: one row per task.

A state, an optimiser or a batch of samples that every task has of its own is a `PerTask`, or `InOrder` where all tasks
stand in one array. Everything else in a solver's memory is shared. Together with `Group` this is the one place that
vmaps over tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerTask(Generic[T]):
    """One pytree for each group of like tasks, whose leaves have a leading axis: the tasks of the group."""

    groups: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def for_groups(function: Callable[..., T], *values: PerTask[Any]) -> PerTask[T]:
    """`function` of each group's values, which are stacked over its tasks."""
    return PerTask(tuple(map(function, *values)))


def for_tasks(function: Callable[..., Any], *values: PerTask[Any]) -> PerTask[Any]:
    """`function` of every task's own values.

    >>> import jax.numpy as jnp
    >>> for_tasks(lambda a: a.sum(), PerTask((jnp.ones((2, 3)), jnp.ones((1, 4))))).groups[0].tolist()
    [3.0, 3.0]
    """
    return for_groups(jax.vmap(function), *values)


def fields_of(values: PerTask[Any]) -> tuple[PerTask[Any], ...]:
    """One `PerTask` for each field of the named tuples or tuples that a `PerTask` holds.

    >>> first, second = fields_of(PerTask((("a", "b"), ("c", "d"))))
    >>> first
    PerTask(groups=('a', 'c'))
    """
    return tuple(PerTask(field) for field in zip(*values.groups, strict=True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class InOrder(Generic[T]):
    """A pytree whose leaves have a leading axis: all tasks of a problem, in their order. It belongs to tasks too."""

    value: T


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Everywhere(Generic[T]):
    """One pytree for each group, as `PerTask`, of which every device has all rows: what tasks are drawn from."""

    groups: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.groups)


def is_of_tasks(node: Any) -> bool:
    """Whether a node of a pytree has one row a task."""
    return isinstance(node, (PerTask, InOrder))


class Some(NamedTuple):
    """Some of the tasks, by truth values."""

    groups: PerTask[jax.Array]
    in_order: jax.Array

    def pick(self, own: Any, others: Any) -> Any:
        """The rows of these tasks from one pytree, of the others and all that is shared from another."""

        def rows(chosen: jax.Array, a: Any, b: Any) -> Any:
            mask = lambda leaf: chosen.reshape(chosen.shape + (1,) * (leaf.ndim - 1))  # noqa: E731
            return jax.tree.map(lambda p, q: jnp.where(mask(q), p, q), a, b)

        def node(a: Any, b: Any) -> Any:
            if isinstance(b, PerTask):
                return for_groups(rows, self.groups, a, b)
            return InOrder(rows(self.in_order, a.value, b.value)) if isinstance(b, InOrder) else b

        return jax.tree.map(node, own, others, is_leaf=is_of_tasks)
