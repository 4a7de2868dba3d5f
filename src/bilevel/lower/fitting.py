"""Lower problems solved a good part of the way, on all rows, from where y is: conjugate gradients.

For one task, with s the slope of g at y and A its Hessian there, and d = -s at first, some times

    (1)  y' = y + t d,    t = -<s, d> / <d, A d>                 exact along d where g is quadratic
    (2)  d  = -s' + b d,  b = max(0, <s', s' - s> / <s, s>)       Polak and Ribiere's, with restarts

Where g would not fall, y stays, and the next step is straight down and a quarter as long: g never rises, also where it
is not convex. On a quadratic g as many steps as y has numbers end at y*, up to rounding. A step costs a gradient and a
product with A.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bilevel._core.linear import hessian_product
from bilevel._core.types import Tree
from bilevel.problem.group import TaskView


class Place(NamedTuple):
    """State of the fit of one task."""

    y: Tree
    value: jax.Array
    slope: Tree
    along: Tree
    scale: jax.Array  # of the next step


def fitted(task: TaskView, x: Tree, y: Tree, steps: int | jax.Array) -> Tree:
    """y after some steps with x as it is; g_i(x, y) on all rows is not larger than before."""
    value_and_slope = jax.value_and_grad(lambda y: task.lower(x, y, None))

    def dot(a: Tree, b: Tree) -> jax.Array:
        return jnp.asarray(optax.tree.vdot(a, b))

    def one(_: object, at: Place) -> Place:
        image = hessian_product(task.lower, x, at.y, at.along, None)
        bend = dot(at.along, image)
        # Where g bends down, as if it bent up as much.
        bend = jnp.where(bend > 0, bend, optax.tree.norm(at.along) * optax.tree.norm(image))
        length = at.scale * -dot(at.slope, at.along) / jnp.where(bend > 0, bend, 1)
        new = jax.tree.map(lambda y, d: y + (length * d).astype(y.dtype), at.y, at.along)
        value, slope = value_and_slope(new)
        square = dot(at.slope, at.slope)
        kept = jnp.maximum(0, (dot(slope, slope) - dot(slope, at.slope)) / jnp.where(square > 0, square, 1))
        along = jax.tree.map(lambda d, s: (kept * d).astype(s.dtype) - s, at.along, slope)
        along = optax.tree.where(dot(slope, along) < 0, along, optax.tree.scale(-1, slope))
        falls = value < at.value  # False where it is NaN
        there = Place(new, value, slope, along, jnp.ones_like(at.scale))
        stay = at._replace(along=optax.tree.scale(-1, at.slope), scale=at.scale / 4)
        return jax.tree.map(lambda a, b: jnp.where(falls, a, b), there, stay)

    value, slope = value_and_slope(y)
    first = Place(y, value, slope, optax.tree.scale(-1, slope), jnp.ones_like(value))
    return jax.lax.fori_loop(0, steps, one, first).y
