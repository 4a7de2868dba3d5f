"""What every constraint must do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from bilevel.constraints.base import Constraint
from bilevel.testing.comparing import (
    PRECISIONS,
    other_values,
    precision,
    require,
    require_close,
    require_like,
    require_pytree,
)

X = TypeVar("X")
POINTS = 12
SIZES = (0.1, 1.0, 10.0)  # of the points: near the example, and far outside of most sets


def check_constraint(constraint: Constraint, example: object) -> None:
    """Raises an AssertionError unless a constraint keeps its promises for an x like `example`.

    In float32 and float64: `project` keeps structure, shapes and dtypes; projecting twice is projecting once; no two
    points are farther apart than before; the projection of x is nearer to x than other points of the set, so that
    <x - p, z - p> <= 0 for every member z; batched it gives the same; differentiated, the gradient of
    |x - p|^2 / 2 is x - p; other numbers in the constraint do not compile again.

    Args:
        constraint: to be checked.
        example: a pytree of floating-point arrays of the shapes that the constraint is for; points are drawn around it.

    >>> from bilevel.constraints import Ball
    >>> check_constraint(Ball(2.0), example=jnp.zeros(3))
    """
    require(
        isinstance(constraint, Constraint),
        f"{constraint!r} is no Constraint: it needs bilevel.constraints.Constraint as its base.",
    )
    require_pytree(constraint, "constraint")
    try:
        constraint.check(example)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{constraint}.check(example) refuses it: {error}") from error
    for dtype in PRECISIONS:
        with precision(dtype):
            _check_in(constraint, example, dtype)


def _check_in(constraint: Constraint, example: object, dtype: DTypeLike) -> None:
    name = f"{constraint} in {jnp.dtype(dtype)}"
    points = _drawn(example, dtype)
    traces: list[None] = []

    @jax.jit
    def project(constraint: Constraint, x: X) -> X:
        traces.append(None)
        return constraint.project(x)

    projected = [project(constraint, x) for x in points]
    for x, p in zip(points, projected, strict=True):
        require_like(f"{name}: the projection", p, x)
        require_close(f"{name}: projecting twice is not projecting once", project(constraint, p), p)
    project.trace(other_values(constraint), points[0])
    require(
        len(traces) == 1, f"{name}: other numbers in the constraint compile again: declare them as data, with leaf()."
    )
    _check_distances(name, points, projected)
    _check_transformed(name, project, constraint, points, projected)


def _drawn(example: X, dtype: DTypeLike) -> list[X]:
    """Points around the example, at several distances."""
    generator = np.random.default_rng(0)

    def draw(leaf: jax.Array, size: float) -> jax.Array:
        return jnp.asarray(np.asarray(leaf, float) + size * generator.normal(size=np.shape(leaf)), dtype)

    return [jax.tree.map(lambda a, size=SIZES[k % 3]: draw(a, size), example) for k in range(POINTS)]


def _vector(x: object) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, float).ravel() for leaf in jax.tree.leaves(x)])


def _check_distances(name: str, points: list[X], projected: list[X]) -> None:
    """Non-expansive, and the nearest among the members at hand, which are the other points' projections."""
    eps = float(jnp.finfo(jax.tree.leaves(points[0])[0].dtype).eps)
    vectors, members = [_vector(x) for x in points], [_vector(p) for p in projected]
    scale = 1 + max(np.abs(v).max(initial=0) for v in (*vectors, *members))
    allowed = 64 * eps * scale**2 * len(vectors[0])
    for x, p in zip(vectors, members, strict=True):
        for z, q in zip(vectors, members, strict=True):
            require(
                np.sum((p - q) ** 2) <= np.sum((x - z) ** 2) + allowed,
                f"{name}: {x} and {z} are farther apart after the projection, at {p} and {q}.",
            )
            require(
                (x - p) @ (q - p) <= allowed,
                f"{name}: {p} is not the nearest point to {x}: going towards the member {q} comes nearer.",
            )


def _check_transformed(
    name: str, project: Callable, constraint: Constraint, points: list[X], projected: list[X]
) -> None:
    """vmap gives the same; the gradient of half the squared distance is the way from the projection to the point."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
    batched = jax.vmap(project, in_axes=(None, 0))(constraint, stacked)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *projected)
    require_close(f"{name}: under vmap and without", batched, together)

    def half_square(x: X) -> jax.Array:
        return optax.tree.norm(optax.tree.sub(x, constraint.project(x)), squared=True) / 2

    slopes = jax.jit(jax.vmap(jax.grad(half_square)))(stacked)
    way = jax.tree.map(lambda x, p: x - p, stacked, together)
    require_close(f"{name}: the gradient of half the squared distance is not x - project(x)", slopes, way, ulps=1e3)
