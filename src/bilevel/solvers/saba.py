"""SABA: SOBA with SAGA tables, single loop, for finite data and constant rates.

The data of g and of f are cut into blocks of a batch each. With a table of each block's last values, step k draws one
block of each and moves as SOBA does, at (x^k, y^k, v^k):

    (1)  for each of  grad_y g, A v, J v  (blocks of g)  and  f_y, f_x, f  (blocks of f):
         d = value on the block - its entry in the table + mean of the table;   the entry becomes the value
    (2)  y <- y - rho d(grad_y g),   v <- v - rho (d(A v) - d(f_y)),
         x <- proj_X (x - alpha sum_i lambda_i (d(f_x) - d(J v)))
    (3)  lambda from the losses d(f)

Tables hold products with the v of their time, not matrices. They start full, with true values at the first point. A
last block that is short is drawn less often and counts less. (3) uses a table too: with plain losses the weights, and
with them all the rest, stall at a noise floor.

Published for one task without constraint on N rows, constant rates: O(N^(2/3) eps^-1), linear under the
Polyak-Lojasiewicz condition. Constraint, several tasks and weights (3) are our extension, without a theorem.

Reference: Dagréou, Ablin, Vaiter, Moreau, "A framework for bilevel optimization that enables stochastic and global
variance reduction algorithms", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import part
from bilevel._core.types import Tree
from bilevel.hypergradients.hypergradient import LinearSolution
from bilevel.hypergradients.trackers import Table, look_up, start_table
from bilevel.hypergradients.upper import Evaluation
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, fields_of
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample, Source
from bilevel.solvers._base.checks import check_memory
from bilevel.solvers._base.linear_system import LinearSystemSolver
from bilevel.solvers._base.solver import Card
from bilevel.solvers._base.state import Info, State


@part
class SABA(LinearSystemSolver):
    """SABA: SOBA whose directions lose their noise as tables fill. Options as for `SOBA`; batches are blocks."""

    moves_at_once = True
    card = Card(
        loops="single",
        keeps="v (n d_y), tables: per task and block of g 2 d_y + d_x, of f d_y + d_x + 1",
        rate="O(N^(2/3) eps^-1) on N rows",
        paper="Dagréou, Ablin, Vaiter, Moreau, NeurIPS 2022",
        extension="constraint, several tasks, weights",
    )

    def check(self, problem: Problem) -> None:
        """As SOBA, and finite data."""
        super().check(problem)
        if not all(source.finite for group in problem.groups for source in (group.train, group.validation)):
            raise ValueError("SABA keeps a value for every block of data, and a Generator is infinite: use SOBA.")

    def check_size(self, problem: Problem, x: Tree, y: PerTask[Tree]) -> None:
        """The tables must fit."""
        d_x, numbers = optax.tree.size(x), 0
        for group, y_group in zip(problem.groups, y, strict=True):
            d_y = optax.tree.size(y_group) // group.size
            of_g, of_f = group.train.blocks(group.lower_batch), group.validation.blocks(group.upper_batch)
            numbers += group.size * (of_g * (2 * d_y + d_x) + of_f * (d_y + d_x + 1))
        what = f"SABA, with its tables of {numbers:,} numbers,"
        check_memory(what, numbers, jnp.result_type(*jax.tree.leaves(x)), "use larger batches, or SPABA")

    def start_memory(self, problem: Problem, state: State, key: jax.Array) -> PerTask[Tables]:
        """Full tables of the values at the first point."""
        return problem.each(lambda task, y, v: full_tables(task, state.x, y, v), state.y, state.v)

    def step(self, problem: Problem, state: State, key: jax.Array) -> tuple[State, Info]:
        """Everything at the old point, through the tables."""
        curvature_key, key = jax.random.split(key)
        state, beta = self.lower_rates(problem, state, problem.draw_lower(curvature_key))
        look = lambda task, *own: look_up_blocks(task, state.x, *own)  # noqa: E731
        seen = Seen(*fields_of(problem.each(look, state.y, state.v, state.memory, problem.keys(key))))  # (1)
        direction = problem.weighted_sum(self.weights_of_x(state), seen.direction)
        losses = problem.join(seen.loss).astype(state.weights.dtype)
        upper = Evaluation(direction, losses, self.move_v(state.v, seen.residual, beta))
        state = self.move_lower(state, seen.slope, beta)
        state, info = self.move_x_and_weights(problem, state, beta, upper)  # (2), (3)
        return state._replace(memory=seen.tables), info


class LowerTerms(NamedTuple):
    """What a block of g contributes."""

    slope: Tree  # grad_y g
    image: Tree  # A v
    cross: Tree  # J v


class UpperTerms(NamedTuple):
    """What a block of f contributes."""

    in_y: Tree  # f_y
    in_x: Tree  # f_x
    loss: jax.Array  # f


class Tables(NamedTuple):
    """Of one task."""

    lower: Table  # of LowerTerms
    upper: Table  # of UpperTerms


class Seen(NamedTuple):
    """What one task saw through its tables; or all of them, each field a `PerTask`."""

    slope: Tree
    residual: Tree
    direction: Tree
    loss: Tree
    tables: Tree  # `Tables`


def lower_terms(task: TaskView, x: Tree, y: Tree, v: Tree, sample: Sample) -> LowerTerms:
    """grad_y g, A v and J v, in one pass."""
    slope, pull = jax.vjp(lambda x, y: jax.grad(task.lower, argnums=1)(x, y, sample), x, y)
    cross, image = pull(v)  # the Hessian is symmetric
    return LowerTerms(slope, image, cross)


def upper_terms(task: TaskView, x: Tree, y: Tree, sample: Sample) -> UpperTerms:
    """f_y, f_x and f."""
    loss, (in_x, in_y) = jax.value_and_grad(task.upper, argnums=(0, 1))(x, y, sample)
    return UpperTerms(in_y, in_x, loss)


def full_tables(task: TaskView, x: Tree, y: Tree, solution: LinearSolution) -> Tables:
    """Full tables of the values at a point."""

    def full(value: Callable[[Sample], Tree], source: Source, size: int | None) -> Table:
        def entry(j: jax.Array) -> tuple:
            sample, share = source.block(j, size)
            return value(sample), share

        return start_table(*jax.lax.map(entry, jnp.arange(source.blocks(size))))

    return Tables(
        full(lambda s: lower_terms(task, x, y, solution.v, s), task.train, task.lower_batch),
        full(lambda s: upper_terms(task, x, y, s), task.validation, task.upper_batch),
    )


def look_up_blocks(task: TaskView, x: Tree, y: Tree, solution: LinearSolution, tables: Tables, key: jax.Array) -> Seen:
    """One block of each kind, drawn and looked up."""

    def seen(value: Callable[[Sample], Tree], source: Source, size: int | None, table: Table, key: jax.Array) -> Tree:
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
