"""Layout of a run on devices: which devices it uses, and which arrays each of them holds.

The tasks of every group are cut into as many equal parts as there are devices. A device holds the data of its tasks and
everything that belongs to them (y, its optimiser, v, tables). Every device holds what is shared: x and the weights. A
step sends one sum over the devices, of the direction of x and the losses.

An x that is sharded stays sharded, and so do arrays of its shape: moments of its optimiser, averages, kept iterates. A
step gathers x on every device, because every task needs all of it, and ends with one part on each.

If the devices do not divide a group, the remaining tasks, fewer than there are devices, form a group of their own that
every device computes. So there are no padding tasks, and no code has to know about them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from bilevel._core import values
from bilevel._core.types import Tree
from bilevel.problem.group import Group
from bilevel.problem.on_devices import AXIS, Placement
from bilevel.problem.per_task import Everywhere, PerTask
from bilevel.problem.problem import BaseProblem
from bilevel.problem.task import ROLES

ProblemT = TypeVar("ProblemT", bound=BaseProblem)

Device = Any  # jax.Device, which is no type to checkers
Devices = int | Sequence[Device] | Mesh


class TaskRange(NamedTuple):
    """A range of a group's tasks that forms one group on the devices."""

    start: int
    stop: int
    spread: bool  # cut over the devices, rather than whole on each


@dataclasses.dataclass(frozen=True)
class Layout:
    """The devices that hold the parts of a problem and of a run's state. Hashable, so that it can be a static argument.

    Args:
        mesh: the devices, with an axis "tasks".
        sizes: how many tasks each group of the problem has.
        cuts: shapes of sharded arrays, and how they are cut.
    """

    mesh: Mesh
    sizes: tuple[int, ...]
    cuts: tuple[tuple[tuple[int, ...], Spec], ...] = ()

    @classmethod
    def of(cls, devices: Devices | None, problem: BaseProblem, x: Tree) -> Layout | None:
        """The layout for `solve(devices=...)`, checked; None = one device, which JAX chooses."""
        mesh = _mesh(devices)
        if mesh is None:
            _cuts(x, None)
            return None
        sizes = tuple(group.size for group in problem.groups)
        if max(sizes) < mesh.shape[AXIS]:
            raise ValueError(
                f"solve(devices=...) got {mesh.shape[AXIS]} devices for {problem.counted}, of which the largest has "
                f"{max(sizes)}: it needs at most as many devices, as they share the like tasks of a group."
            )
        return cls(mesh, sizes, _cuts(x, mesh))

    @property
    def devices(self) -> int:
        """The number of parts that the tasks are cut into."""
        return self.mesh.shape[AXIS]

    @property
    def processes(self) -> int:
        """The number of processes that hold the parts."""
        return len({device.process_index for device in self.mesh.devices.flat})

    @functools.cached_property
    def ranges(self) -> tuple[tuple[TaskRange, ...], ...]:
        cuts = [(size - size % self.devices, size) for size in self.sizes]
        both = [(TaskRange(0, even, spread=True), TaskRange(even, size, spread=False)) for even, size in cuts]
        return tuple(tuple(part for part in parts if part.stop > part.start) for parts in both)

    # ------------------------------------------------------------------ to the devices

    def problem(self, problem: ProblemT) -> ProblemT:
        """The problem on the devices, without starting points of y."""
        groups = zip(problem.groups, self.ranges, strict=True)
        placed = tuple(self._group(group, part) for group, parts in groups for part in parts)
        return self._put(problem.replace(groups=()), Spec()).replace(groups=placed)

    def spread(self, tree: Tree) -> Tree:
        """Values of tasks, cut and on their devices; all other values, whole on every device."""

        def put(leaf: Tree, sharding: NamedSharding, part: TaskRange | None) -> Tree:
            return placed(leaf if part is None else leaf[part.start : part.stop], sharding)

        return self.cut(tree, put)

    def constrained(self, tree: Tree) -> Tree:
        """The tree with sharding constraints, under `jit`: where the compiler puts values between two steps."""
        told = lambda leaf, sharding, part: jax.lax.with_sharding_constraint(leaf, sharding)  # noqa: E731
        return self.cut(tree, told, is_cut=True)

    def cut(self, tree: Tree, function: Callable[..., Tree], is_cut: bool = False) -> Tree:
        """`function(leaf, sharding, part)` of every leaf, for each part of its tasks; part None = it is of no task.

        If the tree is not cut yet, the function gets the leaf of all tasks of a group once for each part.
        """

        def node(value: Tree) -> Tree:
            if not is_in_groups(value):
                return function(value, NamedSharding(self.mesh, self.spec_of(value)), None)
            parts = [part for parts in self.ranges for part in parts]
            groups = value if is_cut else [own for own, cuts in zip(value, self.ranges, strict=True) for _ in cuts]
            made = []
            for own, part in zip(groups, parts, strict=True):
                spec = Spec(AXIS) if part.spread and isinstance(value, PerTask) else Spec()
                one = functools.partial(function, sharding=NamedSharding(self.mesh, spec), part=part)
                made.append(jax.tree.map(one, own))
            return type(value)(tuple(made))

        return jax.tree.map(node, tree, is_leaf=is_in_groups)

    def with_whole_x(self, state: Tree) -> Tree:
        """The state with x gathered on every device, under `jit`: the input of a step."""
        if not self.cuts:
            return state
        everywhere = NamedSharding(self.mesh, Spec())
        return state._replace(x=jax.tree.map(lambda a: jax.lax.with_sharding_constraint(a, everywhere), state.x))

    def laid_out(self, tree: Tree) -> Tree:
        """`constrained`, compiled."""
        return _laid_out(self, tree)

    # ------------------------------------------------------------------ and back

    def whole(self, tree: Tree) -> Tree:
        """The inverse of `spread`: values as on one device, in every process."""

        def node(value: Tree) -> Tree:
            if not is_in_groups(value):
                return value
            own = iter(value)
            groups = [[next(own) for _ in parts] for parts in self.ranges]
            return type(value)(tuple(jax.tree.map(lambda *rows: jnp.concatenate(rows), *group) for group in groups))

        return jax.tree.map(node, fetched(tree), is_leaf=is_in_groups)

    # ------------------------------------------------------------------ one thing at a time

    def _group(self, group: Group, part: TaskRange) -> Group:
        start, stop, spread = part
        parts = self.devices if spread else 1
        held: dict[str, Any] = {role: getattr(group, role) for role in ROLES}
        held = {role: None if source is None else source.cut(start, stop, parts) for role, source in held.items()}
        own = self._put(held, Spec(AXIS) if spread else Spec())
        ids = self._put(group.ids[start:stop], Spec())
        return dataclasses.replace(group, **own, ids=ids, y=None, on=Placement(self.mesh, spread))

    def spec_of(self, shared: Tree) -> Spec:
        """The sharding of an array that belongs to no task, by its shape. Any sharding would be right."""
        return dict(self.cuts).get(np.shape(shared), Spec())

    def _put(self, tree: Tree, spec: Spec) -> Tree:
        return jax.tree.map(lambda leaf: placed(leaf, NamedSharding(self.mesh, spec)), tree)


@functools.partial(jax.jit, static_argnums=0)
def _laid_out(layout: Layout, tree: Tree) -> Tree:
    return layout.constrained(tree)


def fetched(tree: Tree) -> Tree:
    """The tree in arrays that this process can read. If it is spread over processes, all of them must call this."""
    leaves, structure = jax.tree.flatten(tree)
    arrays = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    far = [i for i, leaf in arrays if not (leaf.is_fully_addressable or leaf.is_fully_replicated)]
    if far:
        near = jax.jit(lambda own: own, out_shardings=NamedSharding(leaves[far[0]].sharding.mesh, Spec()))
        for i, leaf in zip(far, near([leaves[i] for i in far]), strict=True):
            leaves[i] = leaf
    return jax.tree.unflatten(structure, [_local(leaf) if isinstance(leaf, jax.Array) else leaf for leaf in leaves])


def _local(leaf: jax.Array) -> jax.Array:
    if is_key(leaf):
        return jax.random.wrap_key_data(_local(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jnp.asarray(array.item()) if leaf.weak_type and not array.ndim else jnp.asarray(array)


def placed(leaf: Tree, sharding: NamedSharding) -> Tree:
    """A leaf that every process holds whole, put on the devices of all."""
    if not isinstance(leaf, (jax.Array, np.ndarray)):  # a Python number
        return leaf
    if is_key(leaf):
        return jax.random.wrap_key_data(placed(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def is_in_groups(node: Tree) -> bool:
    """Whether a node of a pytree has rows of tasks, group by group."""
    return isinstance(node, (PerTask, Everywhere))


def is_key(leaf: Tree) -> bool:
    """Whether a leaf has random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _cuts(x: Tree, mesh: Mesh | None) -> tuple[tuple[tuple[int, ...], Spec], ...]:
    """The cuts of the sharded leaves of x; of two leaves with one shape, the first decides."""
    found: dict[tuple[int, ...], Spec] = {}
    try:
        leaves = jax.tree.leaves(x)
    except (TypeError, ValueError):  # no pytree: the check of x refuses it
        return ()
    for leaf in leaves:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
            continue
        own = leaf.sharding
        # The compiler fails at the sum of a step if x is cut along another axis of the mesh.
        if not isinstance(own, NamedSharding) or own.mesh != mesh or {*own.spec} - {None, AXIS}:
            raise ValueError(
                f"solve(x=...) got an x that is sharded by {own}: it needs parts along the axis {AXIS!r} of a mesh "
                "that is given too, devices=mesh; or all of x on every device."
            )
        found.setdefault(leaf.shape, own.spec)
    return tuple(found.items())


# ------------------------------------------------------------------ what a user gives


def _mesh(given: Devices | None) -> Mesh | None:
    if given is None:
        if jax.process_count() == 1:
            return None
        given = jax.devices()  # otherwise every process would compute the whole run by itself
    devices = _first(int(given)) if values.is_whole(given) else given  # type: ignore[arg-type]
    if isinstance(devices, Mesh):
        _check_axes(devices)
        mesh = devices
    elif isinstance(devices, Sequence) and devices and all(isinstance(device, jax.Device) for device in devices):
        mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    else:
        raise TypeError(f"solve(devices={given!r}): it needs a number of devices, a list of them, or a mesh of JAX.")
    there = {device.process_index for device in mesh.devices.flat}
    if there != {jax.process_index()} and len(there) < jax.process_count():
        raise ValueError(
            f"solve(devices=...) got devices of {len(there)} of {jax.process_count()} processes: it needs devices of "
            "all of them, or of the process that calls it only (jax.local_devices())."
        )
    return mesh


def _first(count: int) -> list[Device]:
    there = jax.devices()
    if not 1 <= count <= len(there):
        more = f" On a CPU, JAX_NUM_CPU_DEVICES={count} in the environment makes them." if count > 0 else ""
        raise ValueError(f"solve(devices={count}): it needs a number from 1 to {len(there)}, all there are.{more}")
    return there[:count]


def _check_axes(mesh: Mesh) -> None:
    if AXIS not in mesh.axis_names:
        raise ValueError(f"solve(devices=...) got a mesh with axes {mesh.axis_names}: it needs one named {AXIS!r}.")
    if any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            "solve(devices=...) got a mesh with axes that are not of the type Auto: make it by jax.make_mesh(..., "
            "axis_types=(jax.sharding.AxisType.Auto,)), with one for each axis."
        )
