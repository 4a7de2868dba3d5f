"""The tasks of a group on several devices: each device computes its own tasks, and sums combine the devices.

What belongs to the tasks of a group that is spread, its data among them, is in equal parts along the mesh axis "tasks".
All else is on every device. The code tells the compiler so wherever values of tasks meet shared values. Otherwise the
compiler would move rows between devices, and loops would wait for all devices in every turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from jax.typing import ArrayLike

from bilevel._core import pytrees
from bilevel._core.types import T, Tree
from bilevel.problem.sources import Source, places_of_blocks

AXIS = "tasks"  # of the mesh


class Placement(NamedTuple):
    """Placement of a group's tasks on devices."""

    mesh: Mesh
    spread: bool  # over the devices, rather than all of them on each

    @property
    def spec(self) -> Spec:
        """The sharding of values with one row a task."""
        return Spec(AXIS) if self.spread else Spec()

    @property
    def parts(self) -> int:
        """The number of parts that the tasks are cut into."""
        return self.mesh.shape[AXIS] if self.spread else 1

    def local(self, places: jax.Array, size: int) -> jax.Array:
        """Places in a group of this size, as its device counts them: the first places given are of the first device."""
        return places % (size // self.parts)

    def manual(self, function: Callable[..., T], out: Spec, check_vma: bool) -> Callable[..., T]:
        """`function` on each device, with the device's own rows."""
        options: dict[str, Any] = {"axis_names": {AXIS}, "check_vma": check_vma}
        return jax.shard_map(function, mesh=self.mesh, in_specs=self.spec, out_specs=out, **options)


def parts_of(on: Placement | None) -> int:
    """The number of parts of a group; 1 on one device."""
    return 1 if on is None else on.parts


def each_task(
    function: Callable[..., T], axes: Tree, size: int, on: Placement | None, block: int | None = None
) -> Callable[..., T]:
    """`vmap` over `size` tasks, where they are; on every device over a block of its own at a time, None = over all."""
    count = size // parts_of(on)

    def here(*arguments: Tree) -> Tree:
        if block is None:
            return jax.vmap(function, in_axes=axes, axis_size=count)(*arguments)

        found = in_turn(function, axes, places_of_blocks(count, block), arguments)
        return jax.tree.map(lambda a: a[:count], found)

    if on is None:
        return here

    def own(*arguments: Tree) -> Tree:
        number = jax.lax.axis_index(AXIS) if on.spread else jnp.zeros((), jnp.int32)
        return here(*(value.on_device(number) if isinstance(value, Source) else value for value in arguments))

    # Unchecked where tasks are spread: in a checked one a derivative in what all share, taken inside, would be summed
    # over the devices.
    return on.manual(own, on.spec, check_vma=not on.spread)


def in_turn(function: Callable[..., T], axes: Tree, places: ArrayLike, arguments: Sequence[Tree]) -> T:
    """`vmap` over the tasks at these places, of shape (blocks, tasks), of one device: one block after the other."""

    def some(places: jax.Array) -> Tree:
        few = [a.chosen(places) if isinstance(a, Source) else pytrees.index(a, places) for a in arguments]
        return jax.vmap(function, in_axes=axes, axis_size=len(places))(*few)

    found = jax.lax.map(some, jnp.asarray(places))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found)


def rows_of(function: Callable[..., T], places: jax.Array, size: int, on: Placement | None, *values: Tree) -> T:
    """`function(places, *values)` of values with one row for each of the `size` tasks of a group; so are its results.

    Of tasks that are spread, each device has equally many places, which stand together: nothing is sent.
    """
    if on is None:
        return function(places, *values)
    return on.manual(function, on.spec, check_vma=not on.spread)(on.local(places, size), *values)


def gathered(values: T, on: Placement | None) -> T:
    """Values with one number a task, on all devices. They are sent as a sum, together with other sums of a step."""
    if on is None or not on.spread:
        return values

    def own(value: jax.Array) -> jax.Array:
        whole = jnp.zeros((on.parts, *value.shape), value.dtype).at[jax.lax.axis_index(AXIS)].set(value)
        return jax.lax.psum(whole.reshape(-1), AXIS)

    # Checked, so that its transpose sends nothing: what comes back to it is on all devices already.
    sent = on.manual(own, Spec(), check_vma=True)
    return jax.tree.map(lambda value: sent(value) if value.ndim == 1 and value.dtype != bool else value, values)


def weighted_sum(weights: jax.Array, values: Tree, on: Placement | None) -> Tree:
    """sum_i weights_i values_i over the tasks of a group."""

    def own(weights: jax.Array, values: Tree) -> Tree:
        return jax.tree.map(lambda value: jnp.tensordot(weights.astype(value.dtype), value, 1), values)

    if on is None or not on.spread:
        return own(weights, values)
    return on.manual(lambda *parts: jax.lax.psum(own(*parts), AXIS), Spec(), check_vma=True)(weights, values)


def shared(values: T, on: Placement | None) -> T:
    """Tells the compiler that values are on every device."""
    return values if on is None else _pinned(values, on.mesh, Spec())


def own_rows(values: T, on: Placement | None) -> T:
    """Tells the compiler that values have one row for each task of a group."""
    return values if on is None else _pinned(values, on.mesh, on.spec)


def _pinned(values: T, mesh: Mesh, spec: Spec) -> T:
    return jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(mesh, spec)), values)
