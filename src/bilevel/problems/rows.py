"""What the ready problems need of their tasks and numbers; errors name the argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from bilevel.problem.generators import Generator
from bilevel.problem.task import ROLES, Task, TaskStack


def listed(owner: str, tasks: Any, stacks: bool = False) -> list[Any]:
    """Tasks, at least one, because the sizes are read from the first; stacks only where a problem sets no y."""
    tasks = [tasks] if isinstance(tasks, (Task, TaskStack)) else tasks
    if not isinstance(tasks, Iterable):
        raise TypeError(f"{owner}(tasks=...) got {type(tasks).__name__}: it needs a sequence of bl.Task.")
    tasks = list(tasks)
    if not tasks:
        raise ValueError(f"{owner}(tasks=...) got no tasks: it needs at least one.")
    for task in tasks:
        if not isinstance(task, (Task, TaskStack) if stacks else Task):
            raise TypeError(f"{owner}(tasks=...) got {type(task).__name__}: it needs bl.Task, one for each task.")
    return tasks


def points_of(owner: str, task: Task | TaskStack) -> Any:
    """The points of a task's training rows, which must be a pair of arrays, points and targets."""
    rows = task.train
    if isinstance(rows, Generator) or not isinstance(rows, (tuple, list)) or len(rows) != 2:
        raise TypeError(
            f"{owner}(tasks=...) got training rows of type {type(rows).__name__}: it needs a pair of arrays, "
            "(points, targets)."
        )
    if not hasattr(rows[0], "shape") or len(rows[0].shape) != 2 + isinstance(task, TaskStack):
        raise ValueError(
            f"{owner}(tasks=...) got training points of type {type(rows[0]).__name__} and shape {np.shape(rows[0])}: "
            "it needs an array of shape (rows, numbers)."
        )
    return rows[0]


def check_signs(owner: str, tasks: Iterable[Task | TaskStack]) -> None:
    """A ValueError unless all labels are -1 or 1: with 0 and 1 the rows of label 0 would have a constant loss."""
    for i, task in enumerate(tasks):
        for role, labels in _labels(task):
            others = labels[np.abs(labels) != 1]
            if others.size:
                raise ValueError(
                    f"{owner}(tasks=...): task {_name(task, i)} has the {role} label {others[0]:g}; it needs labels "
                    "-1 and 1."
                )


def check_classes(owner: str, tasks: Iterable[Task | TaskStack], classes: int) -> None:
    """A ValueError unless all labels are classes 0, 1, ...: -1 would be taken for the last class."""
    for i, task in enumerate(tasks):
        for role, labels in _labels(task):
            others = labels[(labels < 0) | (labels >= classes) | (labels != np.round(labels))]
            if others.size or labels.dtype.kind not in "iu":
                shown = f"{others[0]:g}" if others.size else f"dtype {labels.dtype}"
                raise ValueError(
                    f"{owner}(tasks=...): task {_name(task, i)} has the {role} label {shown}; it needs whole numbers "
                    f"from 0 to {classes - 1}, the classes of {classes} outputs."
                )


def _labels(task: Task | TaskStack) -> Iterator[tuple[str, np.ndarray]]:
    """The labels of each role; of none that has no rows, or draws them by a Generator."""
    for role in ROLES:
        rows = getattr(task, role)
        if isinstance(rows, (tuple, list)) and len(rows) == 2:
            yield role, np.asarray(rows[1])


def _name(task: Task | TaskStack, i: int) -> str:
    name = getattr(task, "name", None)
    return str(i) if name is None else repr(name)


def check_callable(owner: str, name: str, value: object, takes: str) -> None:
    """A TypeError unless it is a function."""
    if not callable(value):
        raise TypeError(f"{owner}({name}=...) got {value!r}: it needs a function of {takes}.")
