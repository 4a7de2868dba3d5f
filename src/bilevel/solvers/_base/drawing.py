"""Which tasks a step draws of each group: on several devices, equally many of those of each.

The tasks of a group that is spread over D devices are D parts. Each has an urn of its own, from which a D-th of the
draws of the group is made: so devices have equally much to do, and what a step takes out of them stays on them. With
the share of a task in the draw of its part all estimates are unbiased, as the parts together are the group.

Urns, as the weights, are whole on every device, which draws for all: that costs what it does on one device, and saves a
message before every step.
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
    """How many tasks a step sees of each group: what the sampling says, rounded up to as many of every part."""
    wanted = sampling.counts([group.size for group in problem.groups])
    parts = [parts_of(group.on) for group in problem.groups]
    return tuple(-(-count // part) * part for count, part in zip(wanted, parts, strict=True))


def parts(problem: BaseProblem) -> int:
    """In how many parts the groups are that are in most."""
    return max(parts_of(group.on) for group in problem.groups)


def fill(sampling: Sampling, problem: BaseProblem, counted: jax.Array, key: jax.Array) -> Everywhere[Tree]:
    """The urns of tasks that count so much."""

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
    """Places of a group, those of its first device first; of the weights only the dtype matters."""
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
    """Raises where tasks of groups of these sizes cannot be drawn on so many devices."""
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
