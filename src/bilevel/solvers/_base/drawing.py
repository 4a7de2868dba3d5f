"""Draws of a step's tasks from each group; on several devices, equally many from each device.

The tasks of a group on D devices form D parts. Each part has its own urn, from which a D-th of the group's draws is
made: so all devices have equal work, and rows stay on their device. Estimates use the share of a task in the draw of
its part. They are unbiased, because the parts together are the group.

Every device holds all urns and the weights, and draws for all devices. That costs what it costs on one device, and
saves a message before every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from bilevel._core.types import Tree
from bilevel.problem.group import Group
from bilevel.problem.on_devices import parts_of, shared
from bilevel.problem.per_task import Everywhere
from bilevel.problem.problem import BaseProblem
from bilevel.solvers.sampling import Draw, Sampling


def counts(sampling: Sampling, problem: BaseProblem) -> tuple[int, ...]:
    """The number of tasks of each group in a step: that of the sampling, rounded up to equally many of every part."""
    wanted = sampling.counts([group.size for group in problem.groups])
    parts = [parts_of(group.on) for group in problem.groups]
    return tuple(-(-count // part) * part for count, part in zip(wanted, parts, strict=True))


def parts(problem: BaseProblem) -> int:
    """The largest number of parts of any group."""
    return max(parts_of(group.on) for group in problem.groups)


def fill(sampling: Sampling, problem: BaseProblem, counted: jax.Array, key: jax.Array) -> Everywhere[Tree]:
    """The urns for tasks with these shares."""

    def one(number: int, group: Group, weights: jax.Array, count: int) -> Tree:
        own = jax.random.fold_in(key, number)
        return _in_parts(lambda w, k, n: sampling.fill(w, n, k), group, count, (weights,), own)

    weights = problem.split_everywhere(jnp.abs(counted))
    own = enumerate(zip(problem.groups, weights, counts(sampling, problem), strict=True))
    return Everywhere(tuple(one(number, *group) for number, group in own))


def refill(sampling: Sampling, problem: BaseProblem, urns: Everywhere[Tree], counted: jax.Array) -> Everywhere[Tree]:
    """The urns after the weights have moved."""

    def one(group: Group, urn: Tree, weights: jax.Array, count: int) -> Tree:
        return _in_parts(lambda u, w, n: sampling.refill(u, w, n), group, count, (urn, weights))

    weights = problem.split_everywhere(jnp.abs(counted))
    own = zip(problem.groups, urns, weights, counts(sampling, problem), strict=True)
    return Everywhere(tuple(one(*group) for group in own))


def draw(sampling: Sampling, group: Group, urn: Tree, weights: jax.Array, count: int, key: jax.Array) -> Draw:
    """Drawn places of a group, those of its first device first. Of the weights only the dtype is used."""
    some = weights[: group.size]
    found = _in_parts(lambda u, w, k, n: sampling.draw(u, w, n, k), group, count, (urn, some), key)
    size, of_each = group.size // parts_of(group.on), count // parts_of(group.on)
    first = (jnp.arange(count) // of_each * size).astype(found.places.dtype)
    return shared(Draw(found.places + first, found.share), group.on)


def _in_parts(function: Callable, group: Group, count: int, rows: tuple, key: jax.Array | None = None) -> Tree:
    """`function(*rows, key, count)` of every part of a group, where `rows` has one for every task of it."""
    number = parts_of(group.on)
    keys = () if key is None else (key,)
    if number == 1:
        return function(*rows, *keys, count)
    keys = () if key is None else (jax.random.split(key, number),)
    apart = jax.tree.map(lambda a: a.reshape(number, -1, *a.shape[1:]), rows)
    found = jax.vmap(lambda *own: function(*own, count // number))(*apart, *keys)
    return shared(jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), found), group.on)


def check_devices(sampling: Sampling, sizes: Sequence[int], devices: int) -> None:
    """Raises if groups of these sizes are too small for draws on this many devices."""
    least = sum(devices * (size >= devices) + (size % devices > 0) for size in sizes)
    asked = sum(sampling.counts(sizes))
    if asked < least:
        raise ValueError(
            f"solve(devices=...) got {devices} devices, and a solver with sampling={sampling}: every device draws at "
            "least one of its tasks of a group, and one is drawn of those that are left over where devices do not "
            f"divide a group. It needs at least {least} tasks, or fewer devices."
        )
    size = max(sizes)
    urn = jax.eval_shape(
        lambda: sampling.fill(jnp.full(size, 1 / size), min(asked, size), jax.random.key(0))  # its shapes only
    )
    if any(leaf.shape[:1] != (size,) for leaf in jax.tree.leaves(urn)):
        raise ValueError(
            f"solve(devices=...) got a solver with sampling={sampling}, whose urn of {size} tasks has arrays without a "
            f"row for each: it needs arrays of shape ({size}, ...) on several devices."
        )
