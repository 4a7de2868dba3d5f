"""Cross-fitting: training and validation rows change places, so that every row validates once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from bilevel._core import pytrees, values
from bilevel._core.types import Data, Tree
from bilevel.problem.sources import Generator
from bilevel.problem.task import Task, TaskStack, as_list

FOLD = re.compile(r"(?P<task>.*), fold (?P<fold>\d+) of \d+", re.DOTALL)


def cross_fit(tasks: object, folds: int = 3, seed: int = 0) -> list[Task | TaskStack]:
    """K tasks for each task, "clinic A, fold 1 of 3": fold k validates on the k-th part of the rows.

    The rows are a task's training and validation rows, pooled and shuffled; fold k trains on all other parts. So every
    row validates once, for a y that was not fitted to it. Every fold has a y of its own: solve with
    `weighting=bl.weightings.Folds(K, ...)`, which takes a task's folds together, and get one y per task from
    `bl.refit`. Whatever else a task has, its test rows among it, every fold has too.

    Args:
        tasks: `bl.Task` and `bl.Task.stack(...)`, with rows (no `Generator`).
        folds: K.
        seed: of the shuffling.

    Returns:
        the first fold of every task, then the second of every task, and so on.

    >>> rows = {"input": np.arange(6.0)[:, None], "target": np.arange(6.0)}
    >>> first, second = cross_fit(Task(rows, rows, name="north"), folds=2)
    >>> first.name, len(first.train["target"]), len(second.validation["target"])
    ('north, fold 1 of 2', 6, 6)

    Reference: the name and the exchange of parts are those of Chernozhukov and others, "Double/debiased machine
    learning for treatment and structural parameters", 2018. As a way to train a shared x it is ours.
    """
    values.whole("folds", folds, least=2, of="cross_fit")
    values.whole("seed", seed, least=0, of="cross_fit")
    made: list[list[Task | TaskStack]] = [[] for _ in range(folds)]
    first = 0
    for task in as_list("cross_fit", tasks):
        names = names_of(task, first)
        rows = pooled("cross_fit", task, ("train", "validation"), names[0])
        axis = int(isinstance(task, TaskStack))
        for k, (train, validation) in enumerate(parts(rows, folds, (seed, first), axis, names[0])):
            own = [f"{name}, fold {k + 1} of {folds}" for name in names]
            named = {"names": own} if isinstance(task, TaskStack) else {"name": own[0]}
            made[k].append(dataclasses.replace(task, train=train, validation=validation, **named))
        first += len(names)
    return [task for fold in made for task in fold]


def names_of(task: Task | TaskStack, first: int) -> list[str]:
    """The names of a task, or of those of a stack, whose first is number `first` of all."""
    if isinstance(task, TaskStack):
        return [f"task {first + i}" for i in range(task.count)] if task.names is None else list(task.names)
    return [f"task {first}" if task.name is None else task.name]


def whole_name(name: object) -> tuple[str, int]:
    """The name of a task before it was cross-fitted, and which fold this one is, from 1; 0 for no fold.

    >>> whole_name("clinic A, fold 2 of 3"), whole_name("clinic B")
    (('clinic A', 2), ('clinic B', 0))
    """
    found = FOLD.fullmatch(name) if isinstance(name, str) else None
    return (found["task"], int(found["fold"])) if found else (name, 0)


def pooled(owner: str, task: Task | TaskStack, roles: Sequence[str], name: str) -> Tree:
    """All rows of these roles, one after the other."""
    axis = int(isinstance(task, TaskStack))
    given = {role: getattr(task, role) for role in roles if getattr(task, role, None) is not None}
    if not given:
        raise ValueError(f"{owner}: task {name!r} has no {' or '.join(roles)} rows.")
    for role, data in given.items():
        if isinstance(data, Generator):
            raise TypeError(f"{owner}: task {name!r} has a Generator as {role}, and it needs rows.")
    arrays = {role: jax.tree.map(np.asarray, data) for role, data in given.items()}
    kinds = {role: pytrees.signature(data, skip=1 + axis) for role, data in arrays.items()}
    role, first = next(iter(kinds.items()))
    for other, kind in kinds.items():
        if kind != first:
            raise ValueError(
                f"{owner} puts the {role} and {other} rows of a task together, and those of {name!r} differ: "
                f"{pytrees.describe(arrays[role])} and {pytrees.describe(arrays[other])}."
            )
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *arrays.values())


def parts(rows: Data, folds: int, seed: int | Sequence[int], axis: int, name: str) -> Iterator[tuple[Data, Data]]:
    """For each fold, all other rows and its own; shuffled."""
    count = jax.tree.leaves(rows)[0].shape[axis]
    if count < folds:
        raise ValueError(f"folds={folds}: task {name!r} has {count} rows, and it needs one for each fold.")
    order = np.array_split(np.random.default_rng(seed).permutation(count), folds)
    take = lambda index: jax.tree.map(lambda a: np.take(a, index, axis=axis), rows)  # noqa: E731
    for k in range(folds):
        yield take(np.concatenate([part for j, part in enumerate(order) if j != k])), take(order[k])
