"""The lower level of all tasks, and how a rule is applied.

descend              lower steps of each task         y_i <- y_i - beta_i grad_y g_i(x, y_i)
lower_gradients      grad_y g_i(x, y_i)
update, reduction    a rule's step, of y or of x, and how far a plateau has lowered its rate
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import optax
from jax.typing import ArrayLike

from bilevel._core.types import Tree
from bilevel.lower.rules import Rule
from bilevel.problem.group import TaskView
from bilevel.problem.per_task import PerTask, fields_of, for_groups
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample

_Reduced = optax.contrib.ReduceLROnPlateauState


class LowerSteps(NamedTuple):
    """The lower steps of one task: all that is needed to take them again."""

    y: Tree  # before the steps
    optimiser: optax.OptState  # before the steps
    rate: jax.Array
    samples: Sample  # one for each step

    def take(self, task: TaskView, rule: Rule, count: int, x: Tree) -> tuple[Tree, optax.OptState]:
        """y and the optimiser's state after the steps."""
        transformation = rule(self.rate)

        def one(carry: tuple, sample: Sample) -> tuple:
            y, optimiser = carry
            loss, gradient = jax.value_and_grad(task.lower, argnums=1)(x, y, sample)
            updates, optimiser = update(transformation, gradient, optimiser, y, loss)
            return (optax.apply_updates(y, updates), optimiser), None

        start = self.y, self.optimiser
        (y, optimiser), _ = jax.lax.scan(one, start, self.samples, length=count, unroll=min(count, 2))
        return y, optimiser


class Replay(NamedTuple):
    """The lower steps of all tasks that were just taken, for estimators that differentiate through them."""

    steps: PerTask[LowerSteps]
    rule: Rule
    length: int  # steps of each task


def draw_steps(problem: Problem, key: jax.Array, count: int) -> PerTask[Sample]:
    """Samples for several lower steps: stacked over tasks, then over steps."""
    keys = jax.random.split(key, count)
    own = PerTask(tuple(jax.vmap(group.keys, out_axes=1)(keys) for group in problem.groups))
    return problem.each(lambda task, k: jax.vmap(task.draw)(k), own)


def first_of(samples: PerTask[Sample]) -> PerTask[Sample]:
    """The samples of the first of several lower steps."""
    return jax.tree.map(lambda s: s[:, 0], samples)


def descend(problem: Problem, x: Tree, replay: Replay) -> tuple[PerTask[Tree], PerTask[optax.OptState]]:
    """y and its optimisers after the lower steps of all tasks."""
    y, optimisers = fields_of(
        problem.each(lambda task, steps: steps.take(task, replay.rule, replay.length, x), replay.steps)
    )
    return y, optimisers


def lower_gradients(problem: Problem, x: Tree, y: PerTask[Tree], samples: PerTask[Sample] | None) -> PerTask[Tree]:
    """grad_y g_i(x, y_i) of all tasks; samples None = all the data."""
    return problem.each(lambda task, y, s: jax.grad(task.lower, argnums=1)(x, y, s), y, samples)


def steps_of(
    y: PerTask[Tree], optimiser: PerTask[optax.OptState], rate: PerTask[jax.Array], samples: PerTask[Sample]
) -> PerTask[LowerSteps]:
    """The lower steps of all tasks, from their parts."""
    return for_groups(LowerSteps, y, optimiser, rate, samples)


def update(
    transformation: optax.GradientTransformation,
    gradient: optax.Updates,
    state: optax.OptState,
    point: optax.Params,
    value: ArrayLike,
) -> tuple[optax.Updates, optax.OptState]:
    """The transformation's updates and next state; the loss is passed on, as some rules watch it."""
    return optax.with_extra_args_support(transformation).update(gradient, state, point, value=value)


def reduction(state: optax.OptState) -> ArrayLike:
    """The factor that plateaus have applied to the rate so far; 1 for a rule that does not watch the loss."""
    found = [s for s in jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, _Reduced)) if isinstance(s, _Reduced)]
    return found[0].scale if found else 1.0
