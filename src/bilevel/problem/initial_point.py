"""Starting points of a run: x as arrays, and one y per task, from any form that the user gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import KeyPath

from bilevel._core import pytrees
from bilevel._core.types import Tree
from bilevel.problem.group import Group
from bilevel.problem.per_task import PerTask
from bilevel.problem.task import Task

if TYPE_CHECKING:
    from bilevel.problem.problem import BaseProblem

UNTRAINED = ("BatchStat", "RngCount", "RngKey")  # variables of Flax NNX
STATE = (
    "Layers with a state of their own (BatchNorm, Dropout) do not fit into x: put the model into evaluation mode and "
    "split the state off, graph, x, state = nnx.split(model, nnx.Param, ...) or x, state = eqx.partition(model, "
    "eqx.is_inexact_array), and put both together again in the loss (nnx.merge, eqx.combine)."
)


def arrays(point: Tree, name: str) -> Tree:
    """A pytree of floating arrays, and of functions where it is a model; or a clear error."""

    def convert(path: KeyPath, value: Tree) -> jax.Array:
        where = f"{name}{jax.tree_util.keystr(path)}"
        try:
            array = jnp.asarray(value)
        except TypeError as error:
            raise TypeError(
                f"{where} got {type(value).__name__}: it needs floating-point arrays.{_of_torch(value)}"
            ) from error
        if not jnp.issubdtype(array.dtype, jnp.floating):
            model = "" if jax.tree_util.all_leaves([point]) or isinstance(point, (dict, list, tuple)) else f" {STATE}"
            raise TypeError(f"{where} has dtype {array.dtype}: it needs a floating-point dtype.{model}")
        # A Python number would be weakly typed, and the first step would then be compiled apart from the others.
        return jnp.asarray(array, array.dtype)

    pytrees.check(point, name)
    _check_all_is_trained(point, name)
    held = pytrees.hold_functions(point)
    if not jax.tree.leaves(held):
        raise ValueError(f"{name} got {point!r}: it needs a pytree with at least one array.")
    return jax.tree_util.tree_map_with_path(convert, held)


def _check_all_is_trained(point: Tree, name: str) -> None:
    """A TypeError where a model of Flax NNX holds floating numbers that steps of x would move and must not."""
    own = jax.tree_util.tree_leaves_with_path(point, is_leaf=lambda node: type(node).__name__ in UNTRAINED)
    for path, node in own:
        if type(node).__name__ in UNTRAINED:
            kind = type(node).__name__
            raise TypeError(f"{name}{jax.tree_util.keystr(path)} is a {kind}, which is not trained. {STATE}")


def _of_torch(value: Tree) -> str:
    """Advice for a module of PyTorch, which JAX cannot differentiate."""
    if not hasattr(value, "named_parameters"):
        return ""
    return (
        " A module of PyTorch cannot be differentiated by JAX: write it as a function of JAX or a model of Flax NNX or "
        "Equinox, with its numbers {name: p.detach().numpy() for name, p in module.named_parameters()} as a start."
    )


def lower_points(problem: BaseProblem, y: Tree, key: jax.Array) -> PerTask[Tree]:
    """Every task's y.

    y is None (each task has its own), one pytree for all tasks, a mapping from task name to y, or a function of
    (key, task).
    """
    if y is None:
        return _own(problem)
    if callable(y) and jax.tree_util.all_leaves([y]):  # a model can be called too, but is a pytree
        return _stack(problem, lambda group, k, i: _called(y, jax.random.fold_in(key, i), task_of(problem, group, k)))
    if isinstance(y, Mapping) and set(y) & set(problem.names):
        return _by_name(problem, y)
    y = arrays(y, "y")
    return PerTask(
        tuple(jax.tree.map(lambda a, n=group.size: jnp.broadcast_to(a, (n, *a.shape)), y) for group in problem.groups)
    )


def check_common(y: Tree, names: Sequence[str]) -> None:
    """Tasks of a distribution start at one point, as none of them is known before."""
    if y is None or (callable(y) and jax.tree_util.all_leaves([y])) or (isinstance(y, Mapping) and set(y) & set(names)):
        raise ValueError(
            f"y got {'None' if y is None else type(y).__name__}: tasks of a bl.TaskDistribution start at one point, so "
            "it needs one pytree of arrays."
        )


def _called(y: Callable[[jax.Array, Task], Tree], key: jax.Array, task: Task) -> Tree:
    try:
        return y(key, task)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(f"y(key, task) fails for task {task.name!r}: {type(error).__name__}: {error}") from error


def _own(problem: BaseProblem) -> PerTask[Tree]:
    for group in problem.groups:
        if group.y is None:
            name = problem.names[int(group.ids[0])]
            raise ValueError(
                f"y is missing: task {name!r} has none. Give Task(y=...), or y= one pytree for all tasks, a dict by "
                "task name, or a function of (key, task)."
            )
    return PerTask(tuple(arrays(group.y, "Task(y)") for group in problem.groups))


def _by_name(problem: BaseProblem, y: Mapping[str, Tree]) -> PerTask[Tree]:
    missing = [name for name in problem.names if name not in y]
    unknown = [name for name in y if name not in set(problem.names)]
    if missing or unknown:
        said = f"no entry for task {missing[0]!r}" if missing else f"an entry {unknown[0]!r} that names no task"
        raise ValueError(f"y has {said}: a dict by task name needs one entry for each of the {problem.size} tasks.")
    return _stack(problem, lambda group, k, i: y[problem.names[i]])


def task_of(problem: BaseProblem, group: Group, k: int) -> Task:
    """Task k of a group, as its user wrote it."""
    return Task(
        train=group.train.task(k),
        validation=group.validation.task(k),
        selection=None if group.selection is None else group.selection.task(k),
        test=None if group.test is None else group.test.task(k),
        name=problem.names[int(group.ids[k])],
        upper=group.upper,
        lower=group.lower,
        y=None if group.y is None else pytrees.index(group.y, k),
    )


def _stack(problem: BaseProblem, make: Callable[[Group, int, int], Tree]) -> PerTask[Tree]:
    stacked = []
    for group in problem.groups:
        ids = np.asarray(group.ids).tolist()
        names = [problem.names[i] for i in ids]
        ys = [arrays(make(group, k, i), f"y[{names[k]!r}]") for k, i in enumerate(ids)]
        for name, y in zip(names, ys, strict=True):
            if pytrees.signature(y) != pytrees.signature(ys[0]):
                raise ValueError(
                    f"y of task {name!r} is {pytrees.describe(y)} but that of the like task {names[0]!r} is "
                    f"{pytrees.describe(ys[0])}: where only y differs, give each task its own, Task(y=...)."
                )
        stacked.append(pytrees.stack(ys))
    return PerTask(tuple(stacked))
