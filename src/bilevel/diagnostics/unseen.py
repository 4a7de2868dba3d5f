"""Unseen tasks, as a problem of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bilevel.problem.problem import Problem
from bilevel.problem.sources import Source
from bilevel.problem.task import as_list


def problem_of(problem: Problem, tasks: Any) -> Problem:
    """The unseen tasks, with the problem's functions, constraint and batches."""
    tasks = as_list("adapt", tasks)
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
    groups = [dataclasses.replace(g, lower_batch=_batch(g.train, first.lower_batch)) for g in unseen.groups]
    return unseen.replace(groups=tuple(groups))


def _batch(source: Source, wanted: int | None) -> int | None:
    """The problem's batch, or all the data where a task has less."""
    if wanted is None and not source.finite:
        raise ValueError(
            "adapt(tasks=...) has a Generator, which is infinite, and the problem has no lower_batch: give it one."
        )
    enough = not source.finite or wanted is None or int(np.min(source.sizes())) >= wanted
    return wanted if enough else None
