"""The tasks of a group on several devices: each device sees its own tasks, and what all must know is gathered.

A group whose `mesh` is set has its data, and all that belongs to its tasks, spread over the mesh axis "tasks", in equal
parts. What is made of these values outside, by the rules of JAX, is the same as on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from bilevel.problem.sources import Source

AXIS = "tasks"  # of the mesh


def each_task(function: Callable[..., Any], axes: Any, size: int, mesh: Mesh | None) -> Callable[..., Any]:
    """`vmap` over `size` tasks, on the devices of a mesh: every device goes through its own tasks.

    Left to itself the compiler would let a loop inside `function` wait for the tasks of all devices in every turn, and
    send rows around that are found by their numbers.
    """
    if mesh is None:
        return jax.vmap(function, in_axes=axes, axis_size=size)

    def own(*arguments: Any) -> Any:
        number = jax.lax.axis_index(AXIS)
        here = [value.on_device(number) if isinstance(value, Source) else value for value in arguments]
        return jax.vmap(function, in_axes=axes, axis_size=size // mesh.shape[AXIS])(*here)

    return _on(mesh, own, Spec(AXIS))


def gathered(values: Any, mesh: Mesh | None) -> Any:
    """What has one number a task, on all devices: as a sum, so that it is sent together with other sums of the step."""
    if mesh is None:
        return values
    parts = mesh.shape[AXIS]

    def own(value: jax.Array) -> jax.Array:
        whole = jnp.zeros((parts, *value.shape), value.dtype).at[jax.lax.axis_index(AXIS)].set(value)
        return jax.lax.psum(whole.reshape(-1), AXIS)

    def one(value: jax.Array) -> jax.Array:
        return _on(mesh, own, Spec())(value) if value.ndim == 1 and value.dtype != bool else value

    return jax.tree.map(one, values)


def _on(mesh: Mesh, function: Callable[..., Any], out: Spec) -> Callable[..., Any]:
    # Unchecked, because in a checked one a derivative in what all share, taken inside, is summed over the devices.
    return jax.shard_map(function, mesh=mesh, in_specs=Spec(AXIS), out_specs=out, axis_names={AXIS}, check_vma=False)
