"""What the ready problems ask of their tasks and numbers, refused by name where it is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bilevel._core import values
from bilevel.problem.sources import Generator
from bilevel.problem.task import Task, TaskStack


def listed(owner: str, tasks: Any, stacks: bool = False) -> list[Any]:
    """Tasks, at least one: a ready problem looks into the first. Only one that gives them no y can take stacks."""
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


def check_strength(owner: str, name: str, value: Any, least: float = 0.0) -> None:
    """A finite number, `least` or more."""
    values.number(name, value, least=least, of=owner)


def check_callable(owner: str, name: str, value: Any, takes: str) -> None:
    """A function."""
    if not callable(value):
        raise TypeError(f"{owner}({name}=...) got {value!r}: it needs a function of {takes}.")
