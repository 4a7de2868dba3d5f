"""Splits rows into tasks, and the rows of each task into training, validation, selection and test rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from bilevel import Task
from bilevel._core import pytrees, values

Shares = Mapping[str, Fraction]  # of each part that there is; they sum to 1


def split(
    rows: Any,
    task: Any = None,
    stratify: Any = None,
    *,
    validation: float = 0.2,
    selection: float = 0.15,
    test: float = 0.15,
    smallest: int | None = None,
    seed: int = 0,
    upper: Callable[..., jax.Array] | None = None,
    lower: Callable[..., jax.Array] | None = None,
    y: Any = None,
) -> list[Task]:
    """Makes tasks from rows, with training, validation, selection and test rows drawn at random.

    x is fitted to the validation rows, so their losses say little about new rows. `result.best` and `patience` use the
    selection rows, and test rows are only reported. Every row is in one part of one task.

    Each part gets its share by largest remainders, and of every class, if there are classes: its number of rows of a
    class is less than 1 away from the share. A part that would get no row at all gets one from the part furthest above
    its share. The split of a task depends on the seed, its name and its rows, and not on other tasks.

    Args:
        rows: a pytree of arrays with one leading axis, the rows.
        task: the task of each row, an array of labels: they become the names of the tasks, in the order in which they
            first appear. One text is the name of the only task; None = one task without a name.
        stratify: the class of each row, an array of labels, whose shares are the same in all parts; None = no classes.
        validation: the share of validation rows; what is left of 1 trains.
        selection: the share of selection rows; 0 = none.
        test: the share of test rows; 0 = none.
        smallest: tasks with fewer rows are left out; `bl.adapt`, which needs training rows only, can fit them later.
            None = leave none out; a task that cannot give each part a row is then an error.
        seed: of the draw.
        upper: the tasks' own f, as for `bl.Task`.
        lower: their own g.
        y: the initial y of each task.

    >>> clinic = np.repeat(["north", "south"], [40, 20])
    >>> measured, ill = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 4 == 0
    >>> tasks = split((measured, ill), task=clinic, stratify=ill)
    >>> {task.name: (len(task.train[1]), len(task.validation[1]), len(task.selection[1])) for task in tasks}
    {'north': (20, 8, 6), 'south': (10, 4, 3)}
    >>> [int(part[1].sum()) for part in (tasks[0].train, tasks[0].validation, tasks[0].selection, tasks[0].test)]
    [5, 2, 2, 1]
    """
    shares = _shares({"validation": validation, "selection": selection, "test": test})
    values.whole("smallest", smallest, of="split", none="no task is left out")
    values.whole("seed", seed, least=0, of="split")
    rows = _arrays(rows)
    count = len(jax.tree.leaves(rows)[0])
    classes = np.zeros(count) if stratify is None else _labels("stratify", stratify, count)
    tasks = []
    for name, index in _tasks(task, count).items():
        if smallest is not None and len(index) < smallest:
            continue
        if len(index) < len(shares):
            whose = "the rows are" if name is None else f"task {name!r} has"
            raise ValueError(
                f"split(rows=...): {whose} {len(index)}, and it needs {len(shares)}, one for each of "
                f"{', '.join(shares)}: give smallest={len(shares)} to leave such tasks out, or 0 as the share of a "
                "part."
            )
        digest = hashlib.sha256(("" if name is None else f"task {name}").encode()).digest()
        generator = np.random.default_rng([int(seed), *np.frombuffer(digest, np.uint32).tolist()])
        parts = _parts(index, classes[index], shares, generator)
        own = {role: pytrees.index(rows, np.sort(part)) for role, part in parts.items()}
        tasks.append(Task(**own, name=name, upper=upper, lower=lower, y=y))
    if not tasks:
        raise ValueError(f"split(smallest={smallest}): every task has fewer rows, so none is left.")
    return tasks


# ------------------------------------------------------------------ arguments


def _shares(given: Mapping[str, float]) -> Shares:
    """The share of each part, exactly as it is written: 0.1 is a tenth."""
    for name, share in given.items():
        values.number(name, share, least=0, of="split")
    exact = {name: Fraction(str(float(share))) for name, share in given.items()}
    train = 1 - sum(exact.values(), Fraction(0))
    if train <= 0 or exact["validation"] == 0:
        shown = ", ".join(f"{name}={share:g}" for name, share in given.items())
        raise ValueError(f"split({shown}): it needs a share of validation rows, and a sum below 1.")
    return {role: share for role, share in ({"train": train} | exact).items() if share}


def _arrays(rows: Any) -> Any:
    """The rows as arrays of one length."""
    pytrees.check(rows, "split(rows)")
    arrays = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else np.asarray(a), rows)
    lengths = {
        f"rows{jax.tree_util.keystr(path)}": len(a) if a.ndim else 0
        for path, a in jax.tree_util.tree_leaves_with_path(arrays)
    }
    if not lengths or len(set(lengths.values())) > 1 or 0 in lengths.values():
        raise ValueError(
            f"split(rows=...) needs arrays with a leading axis of one length, one row or more; got {lengths}."
        )
    return arrays


def _labels(name: str, labels: Any, count: int) -> np.ndarray:
    found = np.asarray(labels)
    if found.shape != (count,):
        raise ValueError(f"split({name}=...) has shape {found.shape}: it needs one label for each of the {count} rows.")
    missing = found != found if found.dtype.kind in "fcO" else np.zeros(count, bool)  # NaN is not equal to itself
    if np.any(missing) or any(label is None for label in found.tolist()):
        raise ValueError(f"split({name}=...) has a row without a label (NaN or None): it needs one for each row.")
    return found


def _tasks(task: Any, count: int) -> dict[str | None, np.ndarray]:
    """The rows of each task by its name, in the order in which tasks first appear."""
    if task is None or isinstance(task, str):
        return {task: np.arange(count)}
    found: dict[str | None, list[int]] = {}
    for i, label in enumerate(_labels("task", task, count).tolist()):
        found.setdefault(str(label), []).append(i)
    return {name: np.array(index) for name, index in found.items()}


# ------------------------------------------------------------------ the draw


def _parts(
    index: np.ndarray, classes: np.ndarray, shares: Shares, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """The rows of each part."""
    labels = classes.tolist()
    own: dict[Any, list[int]] = {label: [] for label in labels}  # in the order of the task's own rows
    for i in generator.permutation(len(index)).tolist():
        own[labels[i]].append(int(index[i]))
    sizes = [len(rows) for rows in own.values()]
    counts = _filled(allot(sizes, list(shares.values())), np.outer(sizes, [float(s) for s in shares.values()]))
    cut = [np.split(np.array(rows), np.cumsum(number)[:-1]) for rows, number in zip(own.values(), counts, strict=True)]
    return {role: np.concatenate([pieces[i] for pieces in cut]) for i, role in enumerate(shares)}


def allot(sizes: Sequence[int], shares: Sequence[Fraction]) -> np.ndarray:
    """How many rows of each class each part gets, (classes, parts): less than 1 from the share of every class.

    Rows that are left after whole numbers go to the largest remainders. A remainder includes what a part lacks from the
    classes before: otherwise many small classes would all favour the same parts.

    >>> allot([3, 3, 3], [Fraction(1, 2), Fraction(1, 2)]).tolist()
    [[2, 1], [1, 2], [2, 1]]
    """
    owed, counts = [Fraction(0)] * len(shares), []
    for size in sizes:
        ideal = [size * share for share in shares]
        own = [int(part) for part in ideal]
        owed = [o + part - n for o, part, n in zip(owed, ideal, own, strict=True)]
        open_ = [i for i, part in enumerate(ideal) if part > own[i]]  # the others have their whole share
        for i in sorted(open_, key=lambda i: -owed[i])[: size - sum(own)]:
            own[i] += 1
            owed[i] -= 1
        counts.append(own)
    return np.array(counts, int)


def _filled(counts: np.ndarray, ideal: np.ndarray) -> np.ndarray:
    """The counts with a row in each part, taken from the part that is furthest above its share of a class."""
    counts = counts.copy()
    while not (in_all := counts.sum(axis=0)).all():
        above = np.where((counts > 0) & (in_all > 1), counts - ideal, -np.inf)
        of_class, giving = np.unravel_index(above.argmax(), above.shape)
        counts[of_class, giving] -= 1
        counts[of_class, int(in_all.argmin())] += 1
    return counts
