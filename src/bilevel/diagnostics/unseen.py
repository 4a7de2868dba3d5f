"""Unseen tasks, as a problem of their own."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bilevel.problem.problem import Problem
from bilevel.problem.sources import Source
from bilevel.problem.task import Task, TaskStack, as_list


class Unseen(NamedTuple):
    """The unseen tasks, and which of them have validation rows."""

    problem: Problem
    validated: np.ndarray


def problem_of(problem: Problem, tasks: Any) -> Unseen:
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
    whole = [_with_validation(task) for task in tasks]
    unseen = Problem(**functions, tasks=whole, constraint=problem.constraint, lower_batch=1, upper_batch=1)
    groups = [dataclasses.replace(g, lower_batch=batch_within(g.train, first.lower_batch)) for g in unseen.groups]
    counts = [task.count if isinstance(task, TaskStack) else 1 for task in tasks]
    validated = np.repeat([task is own for task, own in zip(tasks, whole, strict=True)], counts)
    return Unseen(unseen.replace(groups=tuple(groups)), validated)


def _with_validation(task: Task | TaskStack) -> Task | TaskStack:
    """A task that has no validation rows gets some, as f needs them; what it is there is not told."""
    if task.validation is not None or task.train is None:
        return task
    if task.test is not None:
        return dataclasses.replace(task, validation=task.test)
    return dataclasses.replace(task, validation=task.train, upper=_nothing)  # rows of g need not fit f


def _nothing(x: Any, y: Any, batch: Any) -> jax.Array:
    """0, or NaN where y has diverged."""
    return jnp.asarray(0 * optax.tree.sum(y))


def batch_within(source: Source, wanted: int | None) -> int | None:
    """The problem's batch, or all the data where a task has less."""
    if wanted is None and not source.finite:
        raise ValueError(
            "adapt(tasks=...) has a Generator, which is infinite, and the problem has no lower_batch: give it one."
        )
    enough = not source.finite or wanted is None or int(np.min(source.sizes())) >= wanted
    return wanted if enough else None
