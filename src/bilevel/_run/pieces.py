"""Values of a run as they lie on its devices, under the names that they have on one.

On several devices the rows of a group of tasks are one array or two (`Layout.stretches`). Here they are the pieces of
one leaf, so that a tree has the structure of a run on one device, whatever the devices are.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, Sharding

from bilevel._run.devices import Layout, is_in_groups, spec_of_rows


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The pieces of one leaf, by their first rows. To JAX it is a leaf itself."""

    starts: tuple[int, ...]
    values: tuple[Any, ...]


class Target(NamedTuple):
    """Where a piece is to be, and its shape; no sharding = on one device, which JAX chooses."""

    shape: tuple[int, ...]
    sharding: Sharding | None


def in_pieces(layout: Layout | None, tree: Any) -> Any:
    """Values of a run, with the pieces of each leaf together."""

    def node(value: Any) -> Any:
        if layout is None or not is_in_groups(value):
            return jax.tree.map(lambda leaf: Pieces((0,), (leaf,)), value)
        own, groups = iter(value), []
        for parts in layout.stretches:
            starts = tuple(part.start for part in parts)
            rows = [next(own) for _ in parts]
            groups.append(jax.tree.map(lambda *leaves, starts=starts: Pieces(starts, leaves), *rows))
        return type(value)(tuple(groups))

    return jax.tree.map(node, tree, is_leaf=is_in_groups)


def targets(layout: Layout | None, tree: Any) -> Any:
    """Where the pieces of each leaf of an outline are to be, if it has shapes as on one device."""

    def node(value: Any) -> Any:
        if layout is None:
            return jax.tree.map(lambda leaf: Pieces((0,), (Target(leaf.shape, None),)), value)
        if not is_in_groups(value):
            return Pieces((0,), (Target(value.shape, NamedSharding(layout.mesh, layout.spec_of(value))),))
        groups = []
        for own, parts in zip(value, layout.stretches, strict=True):
            places = [(part.stop - part.start, NamedSharding(layout.mesh, spec_of_rows(part, value))) for part in parts]
            starts = tuple(part.start for part in parts)

            def of_leaf(leaf: Any, starts: Any = starts, places: Any = places) -> Pieces:
                return Pieces(starts, tuple(Target((rows, *leaf.shape[1:]), place) for rows, place in places))

            groups.append(jax.tree.map(of_leaf, own))
        return type(value)(tuple(groups))

    return jax.tree.map(node, tree, is_leaf=is_in_groups)


def on_devices(layout: Layout | None, tree: Any) -> Any:
    """`in_pieces` undone."""

    def node(value: Any) -> Any:
        if layout is None or not is_in_groups(value):
            return jax.tree.map(lambda pieces: pieces.values[0], value)
        rows = [
            jax.tree.map(lambda pieces, i=i: pieces.values[i], own)
            for own, parts in zip(value, layout.stretches, strict=True)
            for i in range(len(parts))
        ]
        return type(value)(tuple(rows))

    return jax.tree.map(node, tree, is_leaf=is_in_groups)
