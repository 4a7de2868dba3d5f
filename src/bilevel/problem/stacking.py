"""How like tasks are stacked into groups."""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

from bilevel._core import pytrees, values
from bilevel._core.types import Data, Objective, Tree
from bilevel.problem import mapped
from bilevel.problem.group import Group
from bilevel.problem.loaded import Loaded
from bilevel.problem.sources import Arrays, Generator, Ragged, Source
from bilevel.problem.task import ROLES, Task, TaskStack, arrays_of, as_list

NUMBERS = "biufcV"  # numpy's kinds of dtypes; V are those that JAX adds, such as bfloat16


class Batches(NamedTuple):
    """Rows per step, by role; None = all the data. `arguments` are the names of the arguments."""

    lower: int | None
    upper: int | None
    arguments: Sequence[tuple[str, str]] = (("lower_batch", "train"), ("upper_batch", "validation"))

    def check(self, owner: str, group: Group, names: Sequence[str]) -> None:
        """Raises where a batch is not a number of rows that every task of a group has."""
        for argument, role in self.arguments:
            source: Source = getattr(group, role)
            batch = self.lower if role == "train" else self.upper
            if batch is None and not source.finite:
                raise ValueError(
                    f"{owner}({argument}=None) means all the data, and a Generator is infinite: give a number."
                )
            if batch is None:
                continue
            values.whole(argument, batch, of=owner, none="all the data")
            sizes = source.sizes()
            shortest = int(np.argmin(sizes))
            if source.finite and jax.tree.leaves(source) and batch > sizes[shortest]:
                name = names[int(group.ids[shortest])]
                raise ValueError(
                    f"{owner}({argument}={batch}) is larger than the data: task {name!r} has {sizes[shortest]} rows."
                )


class Stacked(NamedTuple):
    """All tasks of a problem: groups of like ones, and their names."""

    groups: tuple[Group, ...]
    names: list[str]


def stack_tasks(owner: str, tasks: object, upper: Objective, lower: Objective, batches: Batches) -> Stacked:
    """Stacks like tasks; errors name `owner(tasks=...)`."""
    alike: dict[Hashable, list[_Uniform]] = defaultdict(list)
    names: list[str] = []
    for task in as_list(owner, tasks):
        uniform = _uniform(task, len(names), upper, lower)
        names.extend(_names(task, uniform.ids))
        for name in names[uniform.ids.start :]:
            if not isinstance(name, Hashable):  # numbers may be names too
                raise TypeError(f"{owner}(tasks=...) got the task name {name!r}: it needs text.")
        alike[uniform.kind].append(uniform)
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise ValueError(f"{owner}(tasks=...) got the task name {twice!r} more than once: names must be unique.")
    groups = tuple(_group(own, batches) for own in alike.values())
    for group in groups:
        batches.check(owner, group, names)
    _check_selection(owner, groups, names)
    return Stacked(groups, names)


def _check_selection(owner: str, groups: Sequence[Group], names: Sequence[str]) -> None:
    """Raises unless all tasks or none have rows for selection: the best iterate needs the worst of all tasks."""
    # As a list of numbers: to go through an array of JAX takes a third of a millisecond a task.
    without = [names[i] for group in groups if group.selection is None for i in np.asarray(group.ids).tolist()]
    if 0 < len(without) < len(names):
        raise ValueError(
            f"{owner}(tasks=...): {len(without)} of {len(names)} tasks, {without[0]!r} for one, "
            f"{'has' if len(without) == 1 else 'have'} no selection rows, and the others do: the best iterate is "
            "chosen by the worst of all tasks, so give selection rows to all of them or to none."
        )


def shapes_of(group: Group) -> tuple:
    """The shapes and options of a group. Groups that share them differ only in their functions."""
    sources = [getattr(group, role) for role in ROLES]
    y = None if group.y is None else pytrees.signature(group.y, skip=1)
    data = [s.reader if isinstance(s, Loaded) else pytrees.signature(getattr(s, "data", None), skip=2) for s in sources]
    return y, *zip(map(type, sources), data, strict=True)


class _Uniform(NamedTuple):
    """A task, or many, on the way into a group: on every leaf the first axis is the tasks."""

    ids: range
    roles: dict[str, Data]  # train, validation, selection, test
    y: Tree
    upper: Objective
    lower: Objective

    @property
    def kind(self) -> Hashable:
        """Equal for tasks that can be stacked: the same functions, and shapes but for the number of rows."""
        y = None if self.y is None else pytrees.signature(self.y, skip=1)
        return self.upper, self.lower, tuple(map(_kind_of_data, self.roles.values())), y


def _kind_of_data(data: Data) -> Hashable:
    if isinstance(data, Generator):
        return data.sample, data.evaluation, pytrees.signature(data.parameters, skip=1)
    if isinstance(data, Loaded):
        return data.reader
    return None if data is None else pytrees.signature(data, skip=2)


def _names(task: Task | TaskStack, ids: range) -> list[str]:
    names = task.names if isinstance(task, TaskStack) else [task.name] if task.name is not None else None
    listed = isinstance(names, (Sequence, type(None))) or (isinstance(names, np.ndarray) and names.ndim == 1)
    if not listed or isinstance(names, (str, bytes)):
        raise TypeError(f"Task.stack(names=...) got {names!r}: it needs a list of names.")
    names = [f"task {i}" for i in ids] if names is None else list(names)
    if len(names) != len(ids):
        raise ValueError(f"Task.stack(names=...) got {len(names)} names for {len(ids)} tasks.")
    return names


def _uniform(task: Task | TaskStack, first: int, upper: Objective, lower: Objective) -> _Uniform:
    stacked = isinstance(task, TaskStack)
    ids = range(first, first + (task.count if isinstance(task, TaskStack) else 1))
    what = "Task.stack: " if stacked else f"Task({_names(task, ids)[0]!r})."
    roles = {}
    for role in ROLES:
        data = getattr(task, role)
        pytrees.check(data, f"{what}{role}")
        if role == "validation" and (data is None) != (task.train is None):  # both may be: a task without data
            missing = role if data is None else "train"
            raise TypeError(f"{what}{missing} is None: it needs rows, a pytree of arrays.")
        roles[role] = None if data is None else _stacked(data, f"{what}{role}", stacked)
    pytrees.check(task.y, f"{what}y")
    for level in ("upper", "lower"):
        own = getattr(task, level)
        if own is not None and not callable(own):
            raise TypeError(f"{what}{level} got {own!r}: it needs a function of (x, y, batch).")
    y = None if task.y is None else jax.tree.map(lambda a: _array(a, f"{what}y", stacked), task.y)
    return _Uniform(ids, roles, y, task.upper or upper, task.lower or lower)


def _stacked(data: Data, what: str, stacked: bool) -> Tree:
    """A role's data as arrays whose first axis is the tasks."""
    if isinstance(data, Loaded):
        return data

    def convert(path: KeyPath, a: Tree) -> Tree:
        return _array(a, f"{what}{jax.tree_util.keystr(path)}", stacked)

    arrays = jax.tree_util.tree_map_with_path(convert, arrays_of(data))
    if isinstance(data, Generator):
        if not callable(data.sample):
            raise TypeError(f"Generator(sample={data.sample!r}): it needs a function of (parameters, key, size).")
        values.whole("evaluation", data.evaluation, of="Generator")
        return dataclasses.replace(data, parameters=arrays)
    lengths = {}
    for path, a in jax.tree_util.tree_leaves_with_path(arrays):
        where = jax.tree_util.keystr(path) or "the array"
        if a.ndim < 2:
            shape = a.shape if stacked else a.shape[1:]
            raise ValueError(
                f"{what}{where} has shape {shape}: it needs a leading axis of rows (is it a list? use an array)."
            )
        lengths[where] = a.shape[1]
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{what} has leaves of unequal length {lengths}: every leaf needs the same number of rows.")
    if 0 in lengths.values():
        raise ValueError(f"{what} has no rows: it needs at least one.")
    return arrays


def _array(a: Tree, where: str, stacked: bool) -> Tree:
    """An array with a leading axis of tasks. With numpy, which makes thousands of tasks in the time of a few by JAX."""
    if isinstance(a, Tracer) or _is_extended(a):
        return a if stacked else a.reshape(1, *a.shape)
    if isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind not in NUMBERS:
        raise TypeError(f"{where} has dtype {a.dtype}: it needs numbers; encode labels as integers.")
    if stacked and mapped.is_mapped(a):
        return mapped.checked(a, where)
    if hasattr(a, "__getitem__") and not hasattr(a, "__array__") and not isinstance(a, Sequence):
        # numpy would go through its items, which may never end.
        raise TypeError(
            f"{where} got {type(a).__name__}: data are pytrees of arrays. Make them of a dataset that has one item a "
            "row, for instance tuple(map(np.stack, zip(*dataset))), if it is finite."
        )
    try:
        array = np.asarray(a)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} got {type(a).__name__}: data are pytrees of arrays.") from error
    if array.dtype.kind not in NUMBERS:  # such as text, the name of a file
        raise TypeError(f"{where} got {type(a).__name__}: data are pytrees of arrays.")
    return array if stacked else array[None]


def _is_extended(a: Tree) -> bool:
    """Whether it is an array of JAX's own types, such as random keys, which numpy does not know."""
    return isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.extended)


def _group(alike: list[_Uniform], batches: Batches) -> Group:
    first = alike[0]
    return Group(
        upper=first.upper,
        lower=first.lower,
        train=_source([own.roles["train"] for own in alike], seed=0),
        validation=_source([own.roles["validation"] for own in alike], seed=1),
        selection=None if first.roles["selection"] is None else _source([o.roles["selection"] for o in alike], seed=3),
        test=None if first.roles["test"] is None else _source([o.roles["test"] for o in alike], seed=2),
        ids=jnp.asarray(np.concatenate([own.ids for own in alike]), jnp.int32),
        y=None if first.y is None else _joined([own.y for own in alike]),
        lower_batch=batches.lower,
        upper_batch=batches.upper,
    )


def _source(data: list[Tree], seed: int) -> Source:
    if isinstance(data[0], Generator):
        return dataclasses.replace(data[0], parameters=_joined([d.parameters for d in data]), seed=seed)
    if isinstance(data[0], Loaded):  # of one reader
        return data[0]
    if not jax.tree.leaves(data[0]):
        return Arrays(data[0], 0)  # a task without data: it has only its functions
    tasks, rows = zip(*(jax.tree.leaves(d)[0].shape[:2] for d in data), strict=True)
    if len(data) > 1 and any(map(mapped.is_mapped, jax.tree.leaves(data))):
        warnings.warn(mapped.JOINED.format(count=len(data)), stacklevel=2)
    if len(set(rows)) == 1:
        joined = _joined(data)
        return mapped.source(joined, rows[0], data[0]) if len(data) == 1 else Arrays(joined, rows[0])
    flat = [jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), d) for d in data]
    size = np.repeat(rows, tasks)
    offset = np.concatenate([[0], np.cumsum(size)[:-1]])
    return Ragged(_joined(flat), jnp.asarray(offset, jnp.int32), jnp.asarray(size, jnp.int32), max(rows))


def _joined(trees: list[Tree]) -> Tree:
    def join(*leaves: ArrayLike) -> jax.Array:
        if _is_extended(leaves[0]) and not any(isinstance(leaf, Tracer) for leaf in leaves):  # by numpy too
            data = np.concatenate([np.asarray(jax.random.key_data(leaf)) for leaf in leaves])
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaves[0]))
        if len(leaves) == 1 and mapped.is_mapped(leaves[0]):
            return mapped.as_array(leaves[0])
        library: Callable = jnp.concatenate if any(isinstance(leaf, jax.Array) for leaf in leaves) else np.concatenate
        return jnp.asarray(leaves[0] if len(leaves) == 1 else library(leaves))

    return jax.tree.map(join, *trees)
