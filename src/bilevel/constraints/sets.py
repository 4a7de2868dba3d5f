"""Convex sets with a closed-form projection; the projections are optax's."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import leaf, part


class Constraint(Protocol):
    """A convex set of pytrees."""

    def project(self, x: Any) -> Any:
        """The nearest point of the set."""


@part
class Unconstrained:
    """All of space."""

    def project(self, x: Any) -> Any:
        """Returns x."""
        return x


@part
class NonNegative:
    """x >= 0, entry by entry.

    >>> NonNegative().project(jnp.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def project(self, x: Any) -> Any:
        """max(x, 0)."""
        return optax.projections.projection_non_negative(x)


@part
class Box:
    """lower <= x <= upper, entry by entry. Bounds are numbers, or pytrees like x.

    >>> Box(0.0, 1.0).project(jnp.array([-1.0, 0.5, 2.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    lower: Any = leaf()
    upper: Any = leaf()

    def project(self, x: Any) -> Any:
        """min(max(x, lower), upper)."""
        return optax.projections.projection_box(x, _like(x, self.lower), _like(x, self.upper))


@part
class Ball:
    """||x - center|| <= radius, over the whole pytree; center None = 0.

    >>> Ball(5.0).project(jnp.array([6.0, 8.0])).tolist()
    [3.0, 4.0]
    """

    radius: float = leaf()
    center: Any = leaf(default=None)

    def project(self, x: Any) -> Any:
        """Scales x - center back to the radius where it is longer."""
        radius = jnp.asarray(self.radius, optax.tree.dtype(x))
        if self.center is None:
            return optax.projections.projection_l2_ball(x, radius)
        center = _like(x, self.center)
        return optax.tree.add(center, optax.projections.projection_l2_ball(optax.tree.sub(x, center), radius))


@part
class Simplex:
    """x >= 0 and sum of all entries = total, over the whole pytree.

    >>> Simplex().project(jnp.array([2.0, 0.0])).tolist()
    [1.0, 0.0]
    """

    total: float = leaf(default=1.0)

    def project(self, x: Any) -> Any:
        """The Euclidean projection, by sorting."""
        projected = optax.projections.projection_simplex(x, jnp.asarray(self.total, optax.tree.dtype(x)))
        return optax.tree.cast_like(projected, x)


def _like(x: Any, bound: Any) -> Any:
    """A bound as a pytree like x: a number stands for every entry."""
    if jax.tree.structure(bound) == jax.tree.structure(0.0) and jnp.ndim(bound) == 0:
        return optax.tree.full_like(x, bound)
    return jax.tree.map(lambda a, b: jnp.broadcast_to(jnp.asarray(b, a.dtype), a.shape), x, bound)
