"""How large a shared variable is, leaf by leaf, and how far it moved: units for steps that are relative."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def size(x: jax.Array) -> jax.Array:
    """The root mean square."""
    return jnp.sqrt(jnp.mean(x**2))


def first(x: Any) -> Any:
    """Of every leaf; where it is zero, of all x; where that is zero, 1.

    >>> first({"w": jnp.full(3, 2.0), "b": jnp.zeros(1)})["b"].round(3).item()
    1.732...
    """
    count = sum(leaf.size for leaf in jax.tree.leaves(x))
    whole = optax.tree.norm(x) / jnp.sqrt(count)
    other = jnp.where(whole > 0, whole, 1)
    return jax.tree.map(lambda x: jnp.where(size(x) > 0, size(x), other.astype(x.dtype)), x)


def largest(known: Any, x: Any) -> Any:
    """The largest so far, leaf by leaf."""
    return jax.tree.map(lambda high, x: jnp.maximum(high, size(x)), known, x)


def now(highest: Any, x: Any, fall: float) -> Any:
    """Of every leaf, and at least a part of the largest so far: steps must not vanish where x crosses zero."""
    return jax.tree.map(lambda high, x: jnp.maximum(high / fall, size(x)), highest, x)


def moved(old: Any, new: Any) -> jax.Array:
    """How far x moved, as a part of its size; at most a half."""
    length, way = optax.tree.norm(new), optax.tree.norm(optax.tree.sub(new, old))
    return jnp.where(way < length / 2, way / jnp.where(length > 0, length, 1), jnp.where(way > 0, 0.5, 0.0))
