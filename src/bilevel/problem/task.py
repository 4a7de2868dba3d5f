"""Tasks as users give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from bilevel._core import pytrees
from bilevel._core.types import Data, Dataset, Tree
from bilevel.problem.sources import Generator, Source

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

    train: Data
    validation: Data = None
    selection: Data = dataclasses.field(default=None, kw_only=True)
    test: Data = None
    name: str | None = None
    upper: Callable[..., jax.Array] | None = None
    lower: Callable[..., jax.Array] | None = None
    y: Tree = None

    @staticmethod
    def stack(
        *,
        train: Data,
        validation: Data = None,
        selection: Data = None,
        test: Data = None,
        y: Tree = None,
        upper: Callable[..., jax.Array] | None = None,
        lower: Callable[..., jax.Array] | None = None,
        names: Sequence[str] | None = None,
    ) -> TaskStack:
        """Many like tasks from arrays with a leading task axis: leaves of shape (tasks, rows, ...).

        On a CPU, with one device, a memory-mapped array, `np.load("train.npy", mmap_mode="r")`, stays in its file where
        it is contiguous: with `sampling=` a step reads the rows of the tasks that it draws, and those of coming steps
        are read ahead. On an accelerator all of it is copied to the device. Its dtype must be one that JAX counts in:
        float32, or float64 with `jax_enable_x64`.

        >>> Task.stack(train=np.zeros((1000, 20, 3)), validation=np.zeros((1000, 5, 3))).count
        1000
        """
        return TaskStack(train, validation, selection, test, names, upper, lower, y)

    @staticmethod
    def load(
        dataset: Dataset,
        *,
        upper: Callable[..., jax.Array] | None = None,
        lower: Callable[..., jax.Array] | None = None,
        names: Sequence[str] | None = None,
        threads: int = 2,
    ) -> TaskStack:
        """Many like tasks that are read when a step draws them, ahead of time in threads.

        Args:
            dataset: has `len(dataset)`, and `dataset[i]` is task i: a dict with train and validation (and selection
                and test), each a pytree of arrays with a leading axis of rows, or a `bl.Task`, of which only the rows
                are used. A `MapDataset` of grain or a `Dataset` of PyTorch is one; where it has `__getitems__(list)`,
                many are read at once. Task i must be the same whenever it is asked for, and tasks must have the same
                shapes.
            upper: the tasks' own f, where it differs from the problem's.
            lower: the tasks' own g.
            names: of the tasks; None = "task 0", "task 1", ...
            threads: how many threads read ahead, each the tasks of a step; `dataset[i]` is called from all of them.

        With `sampling=`, rows of the tasks of a step are in memory while it is taken, and about 128 MB of coming ones.
        All tasks are also read once before the first step, for their first losses, and once at the end. With all tasks
        in every step they are read once, into memory.

        >>> rows = np.zeros((1000, 20, 3))
        >>> Task.load([{"train": own[:15], "validation": own[15:]} for own in rows]).count
        1000
        """
        from bilevel.problem.loaded import sources_of  # which knows of tasks

        return TaskStack(**sources_of(dataset, threads), names=names, upper=upper, lower=lower, y=None)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskStack:
    """Many like tasks; see `Task.stack`."""

    train: Data
    validation: Data
    selection: Data
    test: Data
    names: Sequence[str] | None
    upper: Callable[..., jax.Array] | None
    lower: Callable[..., jax.Array] | None
    y: Tree

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
            raise ValueError(
                "Task.stack needs a leading axis of one length, the tasks, one or more, on every leaf; "
                f"got lengths {lengths}."
            )
        return next(iter(lengths.values()))


def arrays_of(data: Data) -> Tree:
    """The stacked arrays of a role's data: a generator's parameters, numbers of tasks to load, or the rows."""
    if isinstance(data, Generator):
        return data.parameters
    return jax.tree.leaves(data) if isinstance(data, Source) else data


def as_list(owner: str, tasks: object) -> list[Task | TaskStack]:
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
