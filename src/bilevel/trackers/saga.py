"""SAGA: a table of the last value of every block of the data."""

from __future__ import annotations

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp

from bilevel.trackers.base import Value


class Table(NamedTuple, Generic[Value]):
    """The last value of every block, and their mean weighted by the blocks' shares of the rows."""

    entries: Value  # leaves (blocks, ...)
    mean: Value


def start_table(values: Value, shares: jax.Array) -> Table[Value]:
    """A full table: where all values were taken at one point, its first direction there is exact."""
    return Table(values, jax.tree.map(lambda v: jnp.tensordot(shares.astype(v.dtype), v, 1), values))


def look_up(table: Table[Value], block: jax.Array, value: Value, share: jax.Array) -> tuple[Value, Table[Value]]:
    """d = G_j - T_j + mean(T), then T_j <- G_j: the direction and the new table.

    With j drawn in proportion to the shares, the mean of d over j is the full value, whatever the table holds.

    Reference: Defazio, Bach, Lacoste-Julien, "SAGA: a fast incremental gradient method with support for non-strongly
    convex composite objectives", NeurIPS 2014.
    """
    change = jax.tree.map(lambda new, old: new - old[block], value, table.entries)
    direction = jax.tree.map(lambda c, m: c + m, change, table.mean)
    entries = jax.tree.map(lambda t, new: t.at[block].set(new), table.entries, value)
    mean = jax.tree.map(lambda m, c: m + (share * c).astype(m.dtype), table.mean, change)
    return direction, Table(entries, mean)
