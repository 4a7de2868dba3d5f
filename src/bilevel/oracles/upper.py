"""What every step of every bilevel solver is made of, over all tasks at once.

descend            lower steps of each task                       y_i <- y_i - beta_i grad_y g_i(x, y_i)
lower_gradients    grad_y g_i(x, y_i)
Upper.direction    the shared hypergradient, one reverse pass     sum_i weights_i D_i(x, y_i)
Upper.directions   the same, one per task (memory n d_x)          D_i(x, y_i)
Upper.both         the same, and what the linear systems lack     f_y - A v_i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel.hypergradients.base import Hypergradient
from bilevel.problem.group import TaskView, UpperSample
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Sample
from bilevel.rules import base as rules
from bilevel.rules.base import Rule


class Walk(NamedTuple):
    """The lower steps of one group of tasks: all that is needed to take them again."""

    y: Any  # before the steps, stacked over tasks
    optimiser: Any  # before the steps
    rate: jax.Array  # one per task
    samples: Sample  # stacked over tasks, then over steps


def draw_steps(problem: Problem, key: jax.Array, steps: int) -> tuple:
    """Samples for so many lower steps, per group: stacked over tasks, then over steps."""
    keys = jax.random.split(key, steps)
    return tuple(
        group.each(lambda task, k: jax.vmap(task.draw)(k), jax.vmap(group.keys, out_axes=1)(keys))
        for group in problem.groups
    )


def first_of(samples: tuple) -> tuple:
    """The samples of the first of several lower steps."""
    return jax.tree.map(lambda s: s[:, 0], samples)


def take_steps(task: TaskView, rule: Rule, steps: int, x: Any, walk: Walk) -> tuple[Any, Any]:
    """The lower steps of one task: y and the optimiser's state after them."""
    transformation = rule(walk.rate)

    def one(carry: tuple, sample: Sample) -> tuple:
        y, optimiser = carry
        loss, gradient = jax.value_and_grad(task.lower, argnums=1)(x, y, sample)
        updates, optimiser = rules.update(transformation, gradient, optimiser, y, loss)
        return (optax.apply_updates(y, updates), optimiser), None

    (y, optimiser), _ = jax.lax.scan(one, (walk.y, walk.optimiser), walk.samples, length=steps, unroll=min(steps, 2))
    return y, optimiser


def descend(problem: Problem, rule: Rule, steps: int, x: Any, walks: tuple[Walk, ...]) -> tuple[tuple, tuple]:
    """The lower steps of all tasks: y and the optimisers' states after them, per group."""
    after = [
        group.each(lambda task, walk: take_steps(task, rule, steps, x, walk), walk)
        for group, walk in zip(problem.groups, walks, strict=True)
    ]
    ys, optimisers = zip(*after, strict=True)
    return tuple(ys), tuple(optimisers)


def lower_gradients(problem: Problem, x: Any, y: tuple, samples: tuple) -> tuple:
    """grad_y g_i(x, y_i) of all tasks, per group."""
    slope = lambda task, y, s: jax.grad(task.lower, argnums=1)(x, y, s)  # noqa: E731
    rows = zip(problem.groups, y, samples, strict=True)
    return tuple(group.each(slope, y, s) for group, y, s in rows)


class Evaluation(NamedTuple):
    """The upper level at one point."""

    direction: Any
    losses: jax.Array  # f_i(x, y_i) on the sample, in the order of the tasks
    state: tuple  # of the estimator, per group


class Upper(NamedTuple):
    """How the upper level is evaluated: an estimator, and what the solver lends to it."""

    hypergradient: Hypergradient
    curvatures: tuple | None = None  # of the lower problems, per group
    walks: tuple[Walk, ...] | None = None
    rule: Rule = optax.sgd
    lower_steps: int = 1

    def _view(self, task: TaskView, lent: tuple) -> TaskView:
        curvature, walk = lent
        replay = None if walk is None else lambda x: take_steps(task, self.rule, self.lower_steps, x, walk)[0]
        return task._replace(curvature=curvature, replay=replay)

    def _over_groups(self, function: Callable, problem: Problem, *arguments: Any) -> list:
        none = (None,) * len(problem.groups)
        rows = zip(problem.groups, self.curvatures or none, self.walks or none, *arguments, strict=True)
        return [
            group.each(lambda task, lent, *a: function(self._view(task, lent), *a), (curvature, walk), *rest)
            for group, curvature, walk, *rest in rows
        ]

    def init(self, problem: Problem, x: Any, y: tuple, samples: tuple[UpperSample, ...]) -> tuple:
        """The estimator's first state, per group."""
        return tuple(self._over_groups(lambda task, y, s: self.hypergradient.init(task, x, y, s), problem, y, samples))

    def prepare(self, problem: Problem, x: Any, y: tuple, state: tuple, samples: tuple[UpperSample, ...]) -> tuple:
        """The estimator's state at a new point, per group."""
        move = lambda task, y, state, s: self.hypergradient.prepare(task, x, y, state, s)  # noqa: E731
        return tuple(self._over_groups(move, problem, y, state, samples))

    def surrogates(self, problem: Problem, x: Any, y: tuple, state: tuple, samples: tuple) -> jax.Array:
        """One surrogate per task, in the order of the tasks."""
        value = lambda task, y, state, s: self.hypergradient.surrogate(task, x, y, state, s)  # noqa: E731
        return problem.join(self._over_groups(value, problem, y, state, samples))

    def direction(
        self, problem: Problem, x: Any, y: tuple, weights: jax.Array, state: tuple, samples: tuple
    ) -> Evaluation:
        """sum_i weights_i D_i by one reverse pass; x is never copied per task."""
        state = self.prepare(problem, x, y, state, samples)
        return self.held(problem, x, y, weights, state, samples)

    def held(self, problem: Problem, x: Any, y: tuple, weights: jax.Array, state: tuple, samples: tuple) -> Evaluation:
        """`direction` with the estimator's state as it is: v is a variable, and does not move here."""

        def weighted(x: Any) -> tuple[jax.Array, jax.Array]:
            losses = self.surrogates(problem, x, y, state, samples)
            return jnp.vdot(weights.astype(losses.dtype), losses), losses

        direction, losses = jax.grad(weighted, has_aux=True)(x)
        return Evaluation(direction, losses.astype(weights.dtype), state)

    def both(
        self, problem: Problem, x: Any, y: tuple, weights: jax.Array, state: tuple, samples: tuple
    ) -> tuple[Evaluation, tuple]:
        """`held`, and the residuals f_y - A v_i: the parts in x and in y of one gradient of the implicit surrogates."""
        # With weight 0 a task would hide its residual; one rounding error of weight is enough to show it.
        shown = jnp.maximum(weights, jnp.finfo(weights.dtype).eps)

        def weighted(x: Any, y: tuple) -> tuple[jax.Array, jax.Array]:
            losses = self.surrogates(problem, x, y, state, samples)
            return jnp.vdot(shown.astype(losses.dtype), losses), losses

        (direction, slopes), losses = jax.grad(weighted, argnums=(0, 1), has_aux=True)(x, y)
        unweighted = jax.vmap(lambda slope, weight: jax.tree.map(lambda s: (s / weight).astype(s.dtype), slope))
        residuals = tuple(unweighted(s, shown[group.ids]) for s, group in zip(slopes, problem.groups, strict=True))
        return Evaluation(direction, losses.astype(weights.dtype), state), residuals

    def directions(self, problem: Problem, x: Any, y: tuple, state: tuple, samples: tuple, dtype: Any) -> Evaluation:
        """D_i for every task: n copies of x."""
        state = self.prepare(problem, x, y, state, samples)
        return self.held_directions(problem, x, y, state, samples, dtype)

    def held_directions(
        self, problem: Problem, x: Any, y: tuple, state: tuple, samples: tuple, dtype: Any
    ) -> Evaluation:
        """`directions` with the estimator's state as it is."""
        both = jax.value_and_grad(lambda x, task, y, state, s: self.hypergradient.surrogate(task, x, y, state, s))
        value = lambda task, y, state, s: both(x, task, y, state, s)  # noqa: E731
        losses, directions = problem.join(self._over_groups(value, problem, y, state, samples))
        return Evaluation(directions, losses.astype(dtype), state)
