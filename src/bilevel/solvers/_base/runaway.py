"""Numbers of x whose optimum is at infinity: penalties and bandwidths go there where a feature is of no use."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

FAR = 4.0  # sizes of a number at the start, at least of 1, from which on it is far away
FLAT = 1e-3  # of the objective: what the slope may be worth over the whole way
MOST = 5  # numbers that are named


def ran_off(start: Any, x: Any, slope: jax.Array, value: float) -> str:
    """Says which numbers of x went far and do not matter where they are; empty where none did.

    >>> import jax.numpy as jnp
    >>> print(ran_off(jnp.zeros(2), jnp.array([16.2, 1.0]), jnp.zeros(2), 0.5))
     x ran off: x[0] from 0 to 16.2, where it matters no more. A bound (bl.constraints.Box) or a prior holds it.
    """
    numbers, before = (np.asarray(ravel_pytree(tree)[0]) for tree in (x, start))
    moved = np.abs(numbers - before)
    idle = np.abs(np.asarray(slope)) * moved <= FLAT * abs(value)
    far = np.flatnonzero(idle & (moved > FAR * np.maximum(1, np.abs(before))))
    if not len(far):
        return ""
    leaves = jax.tree_util.tree_leaves_with_path(x)
    names = [f"x{jax.tree_util.keystr(path)}[{i}]" for path, leaf in leaves for i in range(leaf.size)]
    shown = ", ".join(f"{names[i]} from {before[i]:.3g} to {numbers[i]:.3g}" for i in far[:MOST])
    more = f" and {len(far) - MOST} others" if len(far) > MOST else ""
    return f" x ran off: {shown}{more}, where it matters no more. A bound (bl.constraints.Box) or a prior holds it."
