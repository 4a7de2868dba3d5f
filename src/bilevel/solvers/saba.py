"""SABA: SOBA with SAGA tables, single loop, for finite data and constant rates.

The data of g and of f are cut into blocks of a batch each. With a table of what each block said last, step k draws one
block of each and moves as SOBA does, at (x^k, y^k, v^k):

    (1)  for each of  grad_y g, A v, J v  (blocks of g)  and  f_y, f_x, f  (blocks of f):
         d = value on the block - its entry in the table + mean of the table;   the entry becomes the value
    (2)  y <- y - rho d(grad_y g),   v <- v - rho (d(A v) - d(f_y)),
         x <- proj_X (x - alpha sum_i lambda_i (d(f_x) - d(J v)))
    (3)  lambda from the losses d(f)

Tables hold products with the v of their time, not matrices. They start full, with true values at the first point. A
last block that is short is drawn less often and counts less. (3) uses a table too: with plain losses the weights, and
with them all the rest, stall at a noise floor.

Published for one task without constraint on N rows, constant rates: O(N eps^-1), linear under the Polyak-Lojasiewicz
condition. Constraint, several tasks and weights (3) are our extension, without a theorem.

Reference: Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global
variance reduction algorithms", NeurIPS 2022.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import part
from bilevel.oracles.upper import Evaluation
from bilevel.problem import checks
from bilevel.problem.group import Group, TaskView
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Generator, block, blocks, draw_block
from bilevel.solvers._base.bilevel import Info, Lowered, State
from bilevel.solvers._base.card import Card
from bilevel.solvers.soba import SOBA
from bilevel.trackers.saga import Table, look_up, start_table


class Tables(NamedTuple):
    """Of one task."""

    lower: Table  # (grad_y g, A v, J v)
    upper: Table  # (f_y, f_x, f)


def lower_value(task: TaskView, x: Any, y: Any, v: Any, sample: Any) -> tuple[Any, Any, Any]:
    """grad_y g, A v and J v, in one pass."""
    slope = lambda x, y: jax.grad(task.lower, argnums=1)(x, y, sample)  # noqa: E731
    gradient, pull = jax.vjp(slope, x, y)
    cross, image = pull(v)  # the Hessian is symmetric
    return gradient, image, cross


def upper_value(task: TaskView, x: Any, y: Any, sample: Any) -> tuple[Any, Any, jax.Array]:
    """f_y, f_x and f."""
    loss, (in_x, in_y) = jax.value_and_grad(task.upper, argnums=(0, 1))(x, y, sample)
    return in_y, in_x, loss


@part
class SABA(SOBA):
    """SABA: SOBA whose directions lose their noise as tables fill. Options as for `SOBA`; batches are blocks."""

    card = Card(
        loops="single",
        keeps="v (n d_y), tables: per task and block of g 2 d_y + d_x, of f d_y + d_x + 1",
        rate="O(N eps^-1) on N rows",
        paper="Dagréou, Ablin, Vaiter, Moreau, NeurIPS 2022",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and data that end."""
        super().check(problem)
        for group in problem.groups:
            if isinstance(group.train, Generator) or isinstance(group.validation, Generator):
                raise ValueError("SABA keeps a value for every block of data, and a Generator has no end: use SOBA.")

    def check_size(self, problem: Problem, x: Any, y: tuple) -> None:
        """The tables must fit."""
        d_x, numbers = optax.tree.size(x), 0
        for group, y_group in zip(problem.groups, y, strict=True):
            d_y = optax.tree.size(y_group) // group.size
            of_g, of_f = blocks(group.train, group.lower_batch), blocks(group.validation, group.upper_batch)
            numbers += group.size * (of_g * (2 * d_y + d_x) + of_f * (d_y + d_x + 1))
        what = f"SABA, with its tables of {numbers:,} numbers,"
        checks.check_memory(what, numbers, jnp.result_type(*jax.tree.leaves(x)), "use larger batches, or SPABA")

    def start_trackers(self, problem: Problem, state: State, key: jax.Array) -> State:
        """Full tables of the values at the first point."""

        def one(group: Group, task: TaskView, y: Any, v: Any) -> Tables:
            def full(value: Any, source: Any, size: int | None) -> Table:
                def entry(j: jax.Array) -> tuple:
                    sample, share = block(source, j, size)
                    return value(sample), share

                return start_table(*jax.lax.map(entry, jnp.arange(blocks(source, size))))

            lower = full(lambda s: lower_value(task, state.x, y, v, s), task.train, group.lower_batch)
            return Tables(lower, full(lambda s: upper_value(task, state.x, y, s), task.validation, group.upper_batch))

        rows = zip(problem.groups, state.y, state.hypergradient, strict=True)
        tables = tuple(group.each(lambda t, y, h, g=group: one(g, t, y, h.v), y, h) for group, y, h in rows)
        return state._replace(trackers=tables)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Everything at the old point, through the tables."""
        curvature_key, key = jax.random.split(key)
        automatic = self.follow_curvature(problem, state, problem.draw_lower(curvature_key))
        rate = self.lower_rates(problem, state, automatic)

        def one(group: Group, task: TaskView, y: Any, h: Any, tables: Tables, rate: Any, key: jax.Array) -> tuple:
            def seen(value: Any, source: Any, size: int | None, table: Table, key: jax.Array) -> tuple:
                j = draw_block(source, key, size)
                sample, share = block(source, j, size)
                return look_up(table, j, value(sample), share)

            keys = jax.random.split(key)
            (u, image, cross), lower = seen(
                lambda s: lower_value(task, state.x, y, h.v, s), task.train, group.lower_batch, tables.lower, keys[0]
            )
            (in_y, in_x, loss), upper = seen(
                lambda s: upper_value(task, state.x, y, s), task.validation, group.upper_batch, tables.upper, keys[1]
            )
            lr = rate if self.hypergradient.lr is None else self.hypergradient.lr  # type: ignore[attr-defined]
            v = jax.tree.map(lambda v, a, f: v - (lr * (a - f)).astype(v.dtype), h.v, image, in_y)
            return u, h._replace(v=v), optax.tree.sub(in_x, cross), loss, Tables(lower, upper)

        seen = [
            group.each(lambda t, *a, g=group: one(g, t, *a), *rest, group.keys(key))
            for group, *rest in zip(problem.groups, state.y, state.hypergradient, state.trackers, rate, strict=True)
        ]
        u, v, directions, losses, tables = (tuple(part) for part in zip(*seen, strict=True))
        weighted = lambda d: jnp.tensordot(state.weights.astype(d.dtype), d, 1)  # noqa: E731
        direction = jax.tree.map(weighted, problem.join(directions))
        lowered = Lowered(*self.lower_move(state.y, state.lower, u, rate), rate, automatic)
        evaluation = Evaluation(direction, problem.join(losses).astype(state.weights.dtype), v)
        state, info = self.finish(problem, state, lowered, evaluation)
        return state._replace(trackers=tables), info
