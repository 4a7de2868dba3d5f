"""Limited-memory BFGS: a lower problem solved by gradients alone."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core import values
from bilevel._core.module import part
from bilevel._core.types import Scalar, Tree
from bilevel.lower.solver import Lower, Solved, tolerance
from bilevel.problem.group import TaskView


class Place(NamedTuple):
    """State of the method."""

    step: jax.Array
    y: Tree
    before: Tree
    optimiser: optax.OptState
    move: jax.Array  # the length of the last one


@part
class LBFGS(Lower):
    """optax's L-BFGS with its zoom line search, for y whose Hessian has no useful products (kinks, long recursions).

    Args:
        memory: pairs that it keeps.
        steps: the most steps.

    Reference: Liu and Nocedal, "On the limited memory BFGS method for large scale optimization", 1989.
    """

    memory: int = 10
    steps: int = 500

    def check(self) -> None:
        """Whole numbers."""
        values.whole("memory", self.memory, of="LBFGS")
        values.whole("steps", self.steps, of="LBFGS")

    def solve(self, task: TaskView, x: Tree, y: Tree, accuracy: Scalar | None = None) -> Solved:
        """Minimises g_i(x, .) from y until its quasi-Newton steps are short."""
        rule = optax.lbfgs(memory_size=self.memory)
        loss = lambda y: task.lower(x, y, None)  # noqa: E731
        value_and_slope = optax.value_and_grad_from_state(loss)
        dtype = optax.tree.norm(y).dtype
        wanted = tolerance(dtype) if accuracy is None else jnp.maximum(tolerance(dtype), accuracy)

        def far(here: Place) -> jax.Array:
            return here.move > wanted * (1 + optax.tree.norm(here.y))

        def one(here: Place) -> Place:
            value, slope = value_and_slope(here.y, state=here.optimiser)
            move, optimiser = rule.update(slope, here.optimiser, here.y, value=value, grad=slope, value_fn=loss)
            length = optax.tree.norm(move).astype(dtype)
            fine = jnp.isfinite(length)
            there = Place(here.step + 1, optax.apply_updates(here.y, move), here.y, optimiser, length)
            stay = here._replace(step=here.step + 1, move=jnp.zeros_like(length))
            return jax.tree.map(lambda new, old: jnp.where(fine, new, old), there, stay)

        start = Place(jnp.zeros((), jnp.int32), y, y, rule.init(y), jnp.asarray(jnp.inf, dtype))
        end = jax.lax.while_loop(lambda here: (here.step < self.steps) & far(here), one, start)
        return Solved(end.y, end.before, end.move, ~far(end), 2 * end.step)
