"""Values that belong to tasks: one row per task; and the names of tasks.

A state, an optimiser or a batch of samples that every task has of its own is a `PerTask`, or `InOrder` where all tasks
stand in one array. Everything else in a solver's memory is shared. Together with `Group` this is the one place that
vmaps over tasks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import T, Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerTask(Generic[T]):
    """One pytree for each group of like tasks, whose leaves have a leading axis: the tasks of the group."""

    groups: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


def for_groups(function: Callable[..., T], *values: PerTask[Tree]) -> PerTask[T]:
    """`function` of each group's values, which are stacked over its tasks."""
    return PerTask(tuple(map(function, *values)))


def for_tasks(function: Callable[..., T], *values: PerTask[Tree]) -> PerTask[T]:
    """`function` of every task's own values.

    >>> import jax.numpy as jnp
    >>> for_tasks(lambda a: a.sum(), PerTask((jnp.ones((2, 3)), jnp.ones((1, 4))))).groups[0].tolist()
    [3.0, 3.0]
    """
    return for_groups(jax.vmap(function), *values)


def fields_of(values: PerTask[Tree]) -> tuple[PerTask[Tree], ...]:
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


def is_of_tasks(node: object) -> bool:
    """Whether a node of a pytree has one row a task."""
    return isinstance(node, (PerTask, InOrder))


class Some(NamedTuple):
    """Some of the tasks, by truth values."""

    groups: PerTask[jax.Array]
    in_order: jax.Array

    def pick(self, own: Tree, others: Tree) -> Tree:
        """The rows of these tasks from one pytree, of the others and all that is shared from another."""

        def rows(chosen: jax.Array, a: Tree, b: Tree) -> Tree:
            mask = lambda leaf: chosen.reshape(chosen.shape + (1,) * (leaf.ndim - 1))  # noqa: E731
            return jax.tree.map(lambda p, q: jnp.where(mask(q), p, q), a, b)

        def node(a: Tree, b: Tree) -> Tree:
            if isinstance(b, PerTask):
                return for_groups(rows, self.groups, a, b)
            return InOrder(rows(self.in_order, a.value, b.value)) if isinstance(b, InOrder) else b

        return jax.tree.map(node, own, others, is_leaf=is_of_tasks)


class Names(Sequence[str]):
    """Task names."""

    def __init__(self, names: Sequence[str]):
        self._names = tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[str, ...]: ...
    def __getitem__(self, i: int | slice) -> str | tuple[str, ...]:
        return self._names[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self._names == other._names

    def __hash__(self) -> int:
        return hash(self._names)

    def __repr__(self) -> str:
        return repr(list(self._names[:5])) + ("..." if len(self) > 5 else "")


class TaskValues(Mapping[str, T]):
    """One value per task, by name; stored stacked, sliced on access.

    Args:
        names: of all tasks.
        ids: for each group of like tasks, the place of each of its tasks among the names.
        stacked: for each group, the values of its tasks, on a leading axis.
    """

    def __init__(self, names: Names, ids: Sequence[np.ndarray | jax.Array], stacked: tuple[T, ...]):
        self.names, self.ids, self.stacked = names, ids, stacked

    @functools.cached_property
    def _place(self) -> dict[str, tuple[int, int]]:
        ids = [np.asarray(group) for group in self.ids]
        return {self.names[int(i)]: (g, k) for g, group in enumerate(ids) for k, i in enumerate(group)}

    def __getitem__(self, name: str) -> T:
        if name not in self._place:
            raise KeyError(f"no task is named {name!r}; the tasks are {self.names!r}")
        group, k = self._place[name]
        return pytrees.index(self.stacked[group], k)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"TaskValues({len(self)} tasks: {self.names!r})"
