"""Small problems of every kind, for solvers to be checked on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bilevel.constraints import Box, Product, Unconstrained
from bilevel.problem.base import BaseProblem
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.multiblock import MultiBlockProblem
from bilevel.problem.per_task import PerTask
from bilevel.problem.problem import Problem
from bilevel.problem.task import Task

KINDS = (Problem, MinMaxProblem, MultiBlockProblem)
ROWS = (20, 30, 25, 30, 20)  # training rows of every task: sizes differ inside a group
BOX = (-0.05, 0.05)


class Example(NamedTuple):
    """A problem, and where its runs start."""

    problem: BaseProblem
    x: Any
    y: PerTask[Any]


class Setting(NamedTuple):
    """Which example is wanted.

    Attributes:
        kind: the kind of problem.
        order: of the tasks.
        noise: how far rows differ; with 0 all rows of a task are alike, so that no batch differs from another.
        batch: rows in a batch; None = all the data.
    """

    kind: type[BaseProblem] = Problem
    order: tuple[int, ...] = (0, 1, 2, 3, 4)
    noise: float = 1.0
    batch: int | None = 4


def make(setting: Setting, dtype: DTypeLike) -> Example:
    """Five tasks in two groups whose places alternate, under a box that leaves one entry of x no room at all."""
    tasks = _tasks(setting, dtype)
    high = jnp.asarray([BOX[1], BOX[1], 0.0], dtype)
    box = Product({"w": Box(-high, high), "b": Unconstrained()})
    x = {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}
    rows = setting.batch
    if setting.kind is MinMaxProblem:
        problem = MinMaxProblem(_loss, tasks, constraint=box, batch=rows)
    elif setting.kind is MultiBlockProblem:
        problem = MultiBlockProblem(_saddle, _lower_of_blocks, tasks, box, rows, rows, dual=jnp.zeros((), dtype))
    else:
        problem = Problem(_upper, _lower, tasks, box, rows, rows)
    return Example(problem, x, problem.starting_y(None, jax.random.key(0)))


def _tasks(setting: Setting, dtype: DTypeLike) -> list[Task]:
    generator = np.random.default_rng(0)

    def rows(count: int, slope: np.ndarray) -> tuple[jax.Array, jax.Array]:
        features = (generator.normal(size=3) + setting.noise * generator.normal(size=(count, 3))) / 2
        return jnp.asarray(features, dtype), jnp.asarray(features @ slope, dtype)

    second = {Problem: _absolute, MinMaxProblem: _absolute_loss}.get(setting.kind, _shifted_saddle)
    y = {Problem: {"w": jnp.zeros(3, dtype), "b": jnp.zeros((), dtype)}, MinMaxProblem: None}
    tasks = []
    for i, count in enumerate(ROWS):
        slope = generator.normal(size=3)
        own = second if i % 2 else None
        first = y.get(setting.kind, jnp.zeros(3, dtype))
        tasks.append(Task(rows(count, slope), rows(10, slope), name=f"task {i}", upper=own, y=first))
    return [tasks[i] for i in setting.order]


# ------------------------------------------------------------------ losses


def _miss(x: Any, y: Any, batch: Any) -> jax.Array:
    features, target = batch
    return features @ ((1 + x["w"]) * y["w"]) + y["b"] - target


def _upper(x: Any, y: Any, batch: Any) -> jax.Array:
    return jnp.mean(_miss(x, y, batch) ** 2)


def _absolute(x: Any, y: Any, batch: Any) -> jax.Array:
    return jnp.mean(jnp.sqrt(_miss(x, y, batch) ** 2 + 0.1))


def _lower(x: Any, y: Any, batch: Any) -> jax.Array:
    return _upper(x, y, batch) + 0.1 * jnp.sum(y["w"] ** 2) + 0.1 * y["b"] ** 2 + x["b"] * jnp.sum(y["w"])


def _loss(x: Any, batch: Any) -> jax.Array:
    features, target = batch
    return jnp.mean((features @ x["w"] + x["b"] - target) ** 2)


def _absolute_loss(x: Any, batch: Any) -> jax.Array:
    features, target = batch
    return jnp.mean(jnp.sqrt((features @ x["w"] + x["b"] - target) ** 2 + 0.1))


def _saddle(x: Any, dual: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    features, target = batch
    return dual * jnp.mean(features @ (x["w"] + y) - target) - dual**2 + jnp.mean((features @ y) ** 2)


def _shifted_saddle(x: Any, dual: jax.Array, y: jax.Array, batch: Any) -> jax.Array:
    return _saddle(x, dual, y, batch) + jnp.mean(dual * 0.1)


def _lower_of_blocks(x: Any, y: jax.Array, batch: Any) -> jax.Array:
    features, target = batch
    return jnp.mean((features @ y - x["b"] - target) ** 2) + jnp.sum((y - x["w"]) ** 2)
