"""What SABA stores for every block of data: gradients and products of one task, in tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel.hypergradients.base import LinearSolution
from bilevel.problem.group import TaskView
from bilevel.problem.sources import Sample, Source
from bilevel.trackers.saga import Table, look_up, start_table


class LowerTerms(NamedTuple):
    """What a block of g contributes."""

    slope: Any  # grad_y g
    image: Any  # A v
    cross: Any  # J v


class UpperTerms(NamedTuple):
    """What a block of f contributes."""

    in_y: Any  # f_y
    in_x: Any  # f_x
    loss: jax.Array  # f


class Tables(NamedTuple):
    """Of one task."""

    lower: Table  # of LowerTerms
    upper: Table  # of UpperTerms


class Seen(NamedTuple):
    """What one task saw through its tables; or all of them, each field a `PerTask`."""

    slope: Any
    residual: Any
    direction: Any
    loss: Any
    tables: Any  # `Tables`


def lower_terms(task: TaskView, x: Any, y: Any, v: Any, sample: Sample) -> LowerTerms:
    """grad_y g, A v and J v, in one pass."""
    slope, pull = jax.vjp(lambda x, y: jax.grad(task.lower, argnums=1)(x, y, sample), x, y)
    cross, image = pull(v)  # the Hessian is symmetric
    return LowerTerms(slope, image, cross)


def upper_terms(task: TaskView, x: Any, y: Any, sample: Sample) -> UpperTerms:
    """f_y, f_x and f."""
    loss, (in_x, in_y) = jax.value_and_grad(task.upper, argnums=(0, 1))(x, y, sample)
    return UpperTerms(in_y, in_x, loss)


def full_tables(task: TaskView, x: Any, y: Any, solution: LinearSolution) -> Tables:
    """Full tables of the values at a point."""

    def full(value: Callable[[Sample], Any], source: Source, size: int | None) -> Table:
        def entry(j: jax.Array) -> tuple:
            sample, share = source.block(j, size)
            return value(sample), share

        return start_table(*jax.lax.map(entry, jnp.arange(source.blocks(size))))

    return Tables(
        full(lambda s: lower_terms(task, x, y, solution.v, s), task.train, task.lower_batch),
        full(lambda s: upper_terms(task, x, y, s), task.validation, task.upper_batch),
    )


def look_up_blocks(task: TaskView, x: Any, y: Any, solution: LinearSolution, tables: Tables, key: jax.Array) -> Seen:
    """One block of each kind, drawn and looked up."""

    def seen(value: Callable[[Sample], Any], source: Source, size: int | None, table: Table, key: jax.Array) -> Any:
        j = source.draw_block(key, size)
        sample, share = source.block(j, size)
        return look_up(table, j, value(sample), share)

    keys = jax.random.split(key)
    of_g = lambda s: lower_terms(task, x, y, solution.v, s)  # noqa: E731
    of_f = lambda s: upper_terms(task, x, y, s)  # noqa: E731
    g, lower = seen(of_g, task.train, task.lower_batch, tables.lower, keys[0])
    f, upper = seen(of_f, task.validation, task.upper_batch, tables.upper, keys[1])
    residual, direction = optax.tree.sub(f.in_y, g.image), optax.tree.sub(f.in_x, g.cross)
    return Seen(g.slope, residual, direction, f.loss, Tables(lower, upper))
