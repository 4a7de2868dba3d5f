"""Conjugate gradients on pytrees.

`jax.scipy.sparse.linalg.cg` fails under two `vmap`s where y has several leaves (it moves them to the device in one
operation that wants them batched along one axis). Nothing here is differentiated through a solve, so this is short.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax


def conjugate_gradient(product: Callable[[Any], Any], right: Any, start: Any, iterations: int, tolerance: Any) -> Any:
    """v with |A v - right| <= tolerance |right|, or after so many products; A symmetric and positive definite."""

    def square(v: Any) -> jax.Array:
        return optax.tree.norm(v, squared=True)

    def move(a: Any, scale: jax.Array, b: Any) -> Any:
        return jax.tree.map(lambda a, b: a + (scale * b).astype(a.dtype), a, b)

    def on(carry: tuple) -> jax.Array:
        *_, rest, count = carry
        return (rest > enough) & (count < iterations)

    def step(carry: tuple) -> tuple:
        v, residual, along, rest, count = carry
        image = product(along)
        length = rest / optax.tree.vdot(along, image)
        residual = move(residual, -length, image)
        new = square(residual)
        return move(v, length, along), residual, move(residual, new / rest, along), new, count + 1

    enough = jnp.square(tolerance) * square(right)
    residual = optax.tree.sub(right, product(start))
    first = (start, residual, residual, square(residual), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(on, step, first)[0]
