"""Unseen tasks, as a problem of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bilevel.problem.problem import Problem
from bilevel.problem.sources import Arrays, Generator, Ragged
from bilevel.problem.stacking import Task, TaskStack


def problem_of(problem: Problem, tasks: Any) -> Problem:
    """The unseen tasks, with the problem's functions, constraint and batches."""
    tasks = [tasks] if isinstance(tasks, (Task, TaskStack)) else tasks
    if not hasattr(tasks, "__iter__"):
        raise TypeError(f"adapt(tasks=...) got {type(tasks).__name__}: it needs a sequence of bl.Task.")
    tasks = list(tasks)
    if not tasks:
        raise ValueError("adapt(tasks=...) got no tasks: it needs at least one.")
    first, functions = problem.groups[0], {}
    for level in ("upper", "lower"):
        functions[level] = getattr(first, level)
        several = any(getattr(group, level) is not functions[level] for group in problem.groups)
        if several and any(getattr(task, level, None) is None for task in tasks):
            raise ValueError(
                f"adapt(tasks=...) has a task without {level}, and the problem's own tasks differ in theirs: give "
                f"Task({level}=...)."
            )
    unseen = Problem(**functions, tasks=tasks, constraint=problem.constraint, lower_batch=1, upper_batch=1)
    groups = tuple(
        dataclasses.replace(group, lower_batch=_batch(group.train, first.lower_batch)) for group in unseen.groups
    )
    return Problem.tree_unflatten(unseen.names, (groups, unseen.constraint, unseen.place))


def _batch(source: Any, wanted: int | None) -> int | None:
    """The problem's batch, or all the data where a task has less."""
    if isinstance(source, Generator) and wanted is None:
        raise ValueError(
            "adapt(tasks=...) has a Generator, which has no end, and the problem was given no lower_batch: give it one."
        )
    rows = (
        source.rows if isinstance(source, Arrays) else int(np.min(source.size)) if isinstance(source, Ragged) else None
    )
    return None if wanted is None or (rows is not None and rows < wanted) else wanted
