"""Losses row by row: their mean and their spread, of every task."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel.problem.group import Objective
from bilevel.problem.sources import Source


class Moments(NamedTuple):
    """Of the losses of a task's rows; arrays over tasks, and whatever else."""

    rows: Any  # how many
    mean: Any
    variance: Any  # about the mean, divided by the number of rows

    def error(self) -> np.ndarray:
        """The standard error of the mean; not known (NaN) from one row."""
        rows = np.asarray(self.rows, float)
        return np.sqrt(np.asarray(self.variance) / np.where(rows > 1, rows - 1, np.nan))


def row_moments(objective: Objective, source: Source, x: Any, y: Any) -> Moments:
    """Of an objective on every row of a source, for every task of the group that the source and the y are of."""
    longest = getattr(source, "longest", None) or source.rows
    assert isinstance(longest, int)

    def one(source: Source, y: Any) -> Moments:
        rows = source.take(source.first(longest))
        losses = jax.vmap(lambda row: objective(x, y, jax.tree.map(lambda a: a[None], row)))(rows)
        exists = jnp.arange(longest) < source.rows
        count = jnp.asarray(source.rows, losses.dtype)
        mean = jnp.sum(jnp.where(exists, losses, 0)) / count
        return Moments(count, mean, jnp.sum(jnp.where(exists, (losses - mean) ** 2, 0)) / count)

    return jax.vmap(one, in_axes=(source.axes, 0), axis_size=len(jax.tree.leaves(y)[0]))(source, y)
