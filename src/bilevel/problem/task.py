"""Tasks as users give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bilevel._core import pytrees
from bilevel.problem.generators import Generator

ROLES = ("train", "validation", "selection", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One task: its data, and what is specific to it.

    Args:
        train: the rows of g: a pytree of arrays with one leading axis, or a `Generator`.
        validation: the rows of f; only a task for `bl.adapt` may do without.
        selection: rows that x never sees, by which `result.best` and `patience` go; all tasks of a problem have some,
            or none has. `bl.split` makes them.
        test: held-out rows, used only for reports.
        name: unique; None = "task 0", "task 1", ...
        upper: this task's own f, where it differs from the problem's.
        lower: this task's own g.
        y: where this task's y starts; None = given to `solve`.
    """

    train: Any
    validation: Any = None
    selection: Any = dataclasses.field(default=None, kw_only=True)
    test: Any = None
    name: str | None = None
    upper: Callable[..., jax.Array] | None = None
    lower: Callable[..., jax.Array] | None = None
    y: Any = None

    @staticmethod
    def stack(
        *,
        train: Any,
        validation: Any = None,
        selection: Any = None,
        test: Any = None,
        y: Any = None,
        upper: Callable[..., jax.Array] | None = None,
        lower: Callable[..., jax.Array] | None = None,
        names: Sequence[str] | None = None,
    ) -> TaskStack:
        """Many like tasks from arrays with a leading task axis: leaves of shape (tasks, rows, ...).

        A memory-mapped array, `np.load("train.npy", mmap_mode="r")`, stays in its file where it is contiguous: with
        `sampling=` a step reads the rows of the tasks that it draws, and those of coming steps are read ahead.

        >>> Task.stack(train=np.zeros((1000, 20, 3)), validation=np.zeros((1000, 5, 3))).count
        1000
        """
        return TaskStack(train, validation, selection, test, names, upper, lower, y)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskStack:
    """Many like tasks; see `Task.stack`."""

    train: Any
    validation: Any
    selection: Any
    test: Any
    names: Sequence[str] | None
    upper: Callable[..., jax.Array] | None
    lower: Callable[..., jax.Array] | None
    y: Any

    @property
    def count(self) -> int:
        """How many tasks."""
        for role in (*ROLES, "y"):
            pytrees.check(getattr(self, role), f"Task.stack({role}=...)")
        lengths = {
            f"{role}{jax.tree_util.keystr(path)}": len(a) if np.ndim(a) else 0
            for role in (*ROLES, "y")
            for path, a in jax.tree_util.tree_leaves_with_path(arrays_of(getattr(self, role)))
        }
        if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"Task.stack needs a leading axis of one length, the tasks, on every leaf; got {lengths}.")
        return next(iter(lengths.values()))


def arrays_of(data: Any) -> Any:
    """What is stacked of a role's data: a generator's parameters, or the rows themselves."""
    return data.parameters if isinstance(data, Generator) else data


def as_list(owner: str, tasks: Any) -> list[Task | TaskStack]:
    """The tasks given to `owner(tasks=...)`, at least one."""
    tasks = [tasks] if isinstance(tasks, (Task, TaskStack)) else tasks
    if not isinstance(tasks, Iterable):
        raise TypeError(f"{owner}(tasks=...) got {type(tasks).__name__}: it needs a sequence of bl.Task.")
    tasks = list(tasks)
    for task in tasks:
        if not isinstance(task, (Task, TaskStack)):
            raise TypeError(f"{owner}(tasks=...) got {type(task).__name__}: it needs bl.Task or bl.Task.stack(...).")
    if not tasks:
        raise ValueError(f"{owner}(tasks=...) got no tasks: it needs at least one.")
    return tasks
