"""Tasks as users bring them, and how like ones are stacked."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import pytrees
from bilevel.problem.sources import Arrays, Generator, Ragged


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One task: its data, and what it has of its own.

    Args:
        train: the rows of g: a pytree of arrays with one leading axis, or a `Generator`.
        validation: the rows of f.
        test: held-out rows, looked at only to report.
        name: unique; None = "task 0", "task 1", ...
        upper: this task's own f, where it differs from the problem's.
        lower: this task's own g.
        y: where this task's y starts; None = given to `solve`.
    """

    train: Any
    validation: Any
    test: Any = None
    name: str | None = None
    upper: Callable | None = None
    lower: Callable | None = None
    y: Any = None

    @staticmethod
    def stack(
        *,
        train: Any,
        validation: Any,
        test: Any = None,
        y: Any = None,
        upper: Callable | None = None,
        lower: Callable | None = None,
        names: Sequence[str] | None = None,
    ) -> TaskStack:
        """Many like tasks from arrays with a leading task axis: leaves of shape (tasks, rows, ...).

        >>> Task.stack(train=jnp.zeros((1000, 20, 3)), validation=jnp.zeros((1000, 5, 3))).count
        1000
        """
        return TaskStack(train, validation, test, names, upper, lower, y)


@dataclasses.dataclass(frozen=True, eq=False)
class TaskStack:
    """Many like tasks; see `Task.stack`."""

    train: Any
    validation: Any
    test: Any
    names: Sequence[str] | None
    upper: Callable | None
    lower: Callable | None
    y: Any

    @property
    def count(self) -> int:
        """How many tasks."""
        lengths = {
            f"{role}{jax.tree_util.keystr(path)}": len(a) if np.ndim(a) else 0
            for role in ("train", "validation", "test", "y")
            for path, a in jax.tree_util.tree_leaves_with_path(_parameters(getattr(self, role)))
        }
        if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
            raise ValueError(f"Task.stack needs a leading axis of one length, the tasks, on every leaf; got {lengths}.")
        return next(iter(lengths.values()))


def _parameters(data: Any) -> Any:
    return data.parameters if isinstance(data, Generator) else data


@dataclasses.dataclass
class _Block:
    """Some like tasks on their way into a group: data stacked over tasks, or of one task."""

    stacked: bool
    ids: list[int]
    roles: dict[str, Any]  # train, validation, test
    y: Any
    upper: Callable
    lower: Callable


def _as_arrays(data: Any, what: str) -> Any:
    def convert(path: Any, a: Any) -> jax.Array:
        where = f"{what}{jax.tree_util.keystr(path)}"
        if isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind not in "biufc":
            raise TypeError(f"{where} has dtype {a.dtype}: it needs numbers; encode labels as integers.")
        try:
            a = jnp.asarray(a)
            a = jnp.asarray(a, a.dtype)  # never weakly typed: like data compile once
        except TypeError as error:
            raise TypeError(f"{where} got {type(a).__name__}: data are pytrees of arrays.") from error
        return a

    if isinstance(data, Generator):
        parameters = jax.tree_util.tree_map_with_path(convert, data.parameters)
        return dataclasses.replace(data, parameters=parameters)
    return jax.tree_util.tree_map_with_path(convert, data)


def _check_rows(data: Any, what: str, stacked: bool) -> None:
    if isinstance(data, Generator):
        return
    lengths = {}
    for path, a in jax.tree_util.tree_leaves_with_path(data):
        where = jax.tree_util.keystr(path) or "the array"
        if a.ndim < 1 + stacked:
            raise ValueError(
                f"{what}{where} has shape {a.shape}: it needs a leading axis of rows (is it a list? use an array)."
            )
        lengths[where] = a.shape[stacked]
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{what} has leaves of unequal length {lengths}: every leaf needs the same number of rows.")
    if 0 in lengths.values():
        raise ValueError(f"{what} has no rows: it needs at least one.")


def gather(
    tasks: Sequence[Task | TaskStack],
    upper: Callable,
    lower: Callable,
    lower_batch: int | None,
    upper_batch: int | None,
    owner: str = "Problem",
    checked: Sequence[tuple[str, str]] = (("lower_batch", "train"), ("upper_batch", "validation")),
) -> tuple[list[dict[str, Any]], list[str]]:
    """Stacks like tasks; returns the fields of each group and the names of all tasks.

    Errors speak of `owner`, and of batches by the arguments in `checked`, each with the data that it is drawn from.
    """
    if isinstance(tasks, (Task, TaskStack)):
        tasks = [tasks]
    if not isinstance(tasks, Iterable):
        raise TypeError(f"{owner}(tasks=...) got {type(tasks).__name__}: it needs a sequence of bl.Task.")
    blocks, names = [], []
    for task in tasks:
        if not isinstance(task, (Task, TaskStack)):
            raise TypeError(f"{owner}(tasks=...) got {type(task).__name__}: it needs bl.Task or bl.Task.stack(...).")
        block, own_names = _block(task, len(names), upper, lower)
        blocks.append(block)
        names.extend(own_names)
    if not names:
        raise ValueError(f"{owner}(tasks=...) got no tasks: it needs at least one.")
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise ValueError(f"{owner}(tasks=...) got the task name {twice!r} more than once: names must be unique.")

    alike = defaultdict(list)
    for block in blocks:
        alike[_key(block)].append(block)
    bundles = [_bundle(group, lower_batch, upper_batch) for group in alike.values()]
    for bundle in bundles:
        for argument, role in checked:
            batch = lower_batch if role == "train" else upper_batch
            _check_batch(f"{owner}({argument}", batch, bundle[role], names, bundle["ids"])
    return bundles, names


def _block(task: Task | TaskStack, first: int, upper: Callable, lower: Callable) -> tuple[_Block, list[str]]:
    stacked = isinstance(task, TaskStack)
    count = task.count if stacked else 1
    ids = list(range(first, first + count))
    names = task.names if stacked else [task.name] if task.name is not None else None
    names = [f"task {i}" for i in ids] if names is None else list(names)
    if len(names) != count:
        raise ValueError(f"Task.stack(names=...) got {len(names)} names for {count} tasks.")
    what = "Task.stack(" if stacked else f"Task({names[0]!r})."
    roles = {}
    for role in ("train", "validation", "test"):
        data = getattr(task, role)
        if role == "validation" and (data is None) != (task.train is None):  # both may be: a task without data
            missing = role if data is None else "train"
            raise TypeError(f"{what}{missing} is None: it needs rows, a pytree of arrays.")
        roles[role] = None if data is None else _as_arrays(data, f"{what}{role}")
        _check_rows(roles[role], f"{what}{role}", stacked)
    y = None if task.y is None else jax.tree.map(jnp.asarray, task.y)
    return _Block(stacked, ids, roles, y, task.upper or upper, task.lower or lower), names


def _role_key(data: Any, stacked: bool) -> Any:
    if data is None:
        return None
    if isinstance(data, Generator):
        return data.sample, data.evaluation, pytrees.signature(data.parameters, skip=int(stacked))
    return pytrees.signature(data, skip=1 + stacked)


def _key(block: _Block) -> tuple:
    y = None if block.y is None else pytrees.signature(block.y, skip=int(block.stacked))
    roles = tuple(_role_key(data, block.stacked) for data in block.roles.values())
    return block.upper, block.lower, roles, y


def shape_of(bundle: dict[str, Any]) -> tuple:
    """What of a group is not its functions."""
    sources = [bundle[role] for role in ("train", "validation", "test")]
    y = None if bundle["y"] is None else pytrees.signature(bundle["y"], skip=1)
    return y, *((type(s), pytrees.signature(getattr(s, "data", None), skip=2)) for s in sources)


def _bundle(blocks: list[_Block], lower_batch: int | None, upper_batch: int | None) -> dict[str, Any]:
    first = blocks[0]
    ys = [b.y if b.stacked else jax.tree.map(lambda a: a[None], b.y) for b in blocks]
    return {
        "upper": first.upper,
        "lower": first.lower,
        **{role: _source(blocks, role, seed) for seed, role in enumerate(("train", "validation", "test"))},
        "ids": jnp.asarray(np.concatenate([b.ids for b in blocks]), jnp.int32),
        "y": None if first.y is None else _concatenate(ys),
        "lower_batch": lower_batch,
        "upper_batch": upper_batch,
    }


def _concatenate(trees: list[Any]) -> Any:
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *trees)


def _source(blocks: list[_Block], role: str, seed: int) -> Any:
    data = [b.roles[role] for b in blocks]
    if data[0] is None and role == "test":
        return None
    if isinstance(data[0], Generator):
        stacked = [
            d.parameters if b.stacked else jax.tree.map(lambda a: a[None], d.parameters)
            for b, d in zip(blocks, data, strict=True)
        ]
        return dataclasses.replace(data[0], parameters=_concatenate(stacked), seed=seed)
    if not jax.tree.leaves(data[0]):
        return Arrays(data[0], 0)  # a task without data: its functions are all there is
    counts = [len(b.ids) for b in blocks]
    rows = [jax.tree.leaves(d)[0].shape[int(b.stacked)] for b, d in zip(blocks, data, strict=True)]
    if len(set(rows)) == 1:
        stacked = [d if b.stacked else jax.tree.map(lambda a: a[None], d) for b, d in zip(blocks, data, strict=True)]
        return Arrays(_concatenate(stacked), rows[0])
    flat = [
        jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), d) if b.stacked else d
        for b, d in zip(blocks, data, strict=True)
    ]
    size = np.repeat(rows, counts)
    offset = np.concatenate([[0], np.cumsum(size)[:-1]])
    return Ragged(_concatenate(flat), jnp.asarray(offset, jnp.int32), jnp.asarray(size, jnp.int32), max(rows))


def _check_batch(argument: str, batch: Any, source: Any, names: list[str], ids: Any) -> None:
    if isinstance(source, Generator):
        if batch is None:
            raise ValueError(f"{argument}=None) means all the data, and a Generator has no end: give a number.")
        rows, shortest = None, 0
    elif not jax.tree.leaves(source):
        rows, shortest = None, 0  # a task without data has nothing to draw
    else:
        sizes = np.asarray(source.size) if isinstance(source, Ragged) else np.array([source.rows])
        shortest = int(np.argmin(sizes))
        rows = int(sizes[shortest])
    if batch is None:
        return
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
        raise ValueError(f"{argument}={batch!r}): it needs a whole number of rows, 1 or more, or None.")
    if rows is not None and batch > rows:
        name = names[int(ids[shortest])]
        raise ValueError(f"{argument}={batch}) is larger than the data: task {name!r} has {rows} rows.")
