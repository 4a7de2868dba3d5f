"""The set X that x must stay in: convex sets with a closed-form projection, and products of them.

The projections are optax's. `Constraint` is the base to write one's own from, and says what it must do;
`bl.testing.check_constraint` checks it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax

from bilevel._core import pytrees, values
from bilevel._core.module import leaf, part
from bilevel._core.types import Tree

__all__ = ["Ball", "Box", "Constraint", "NonNegative", "Product", "Simplex", "Unconstrained"]

X = TypeVar("X")


class Constraint(abc.ABC):
    """A closed convex set that x must stay in, given by its projection.

    To write one, make a part (`bl.part`) that inherits from this class and has `project`:

    >>> import jax, jax.numpy as jnp
    >>> from bilevel._core.module import leaf, part
    >>> @part
    ... class MeanZero(Constraint):
    ...     '''Each leaf has mean 0.'''
    ...     def project(self, x):
    ...         return jax.tree.map(lambda a: a - jnp.mean(a), x)
    >>> from bilevel.testing import check_constraint
    >>> check_constraint(MeanZero(), example=jnp.zeros(3))

    What it must do, and what `bl.testing.check_constraint` checks: `project` returns the nearest point of the set
    in the Euclidean norm over the whole pytree, with the structure, shapes and dtypes of x, and works under `jax.jit`,
    `jax.vmap` and `jax.grad`.
    """

    def check(self, x: object) -> None:  # noqa: B027 (most sets have no argument that could be wrong)
        """Raises a ValueError where an argument makes no sense for an x of this structure."""

    @abc.abstractmethod
    def project(self, x: X) -> X:
        """The nearest point of the set."""


@part
class Unconstrained(Constraint):
    """All of space."""

    def project(self, x: X) -> X:
        """Returns x."""
        return x


@part
class NonNegative(Constraint):
    """x >= 0, entry by entry.

    >>> NonNegative().project(jnp.array([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def project(self, x: X) -> X:
        """max(x, 0)."""
        return optax.projections.projection_non_negative(x)


@part
class Box(Constraint):
    """lower <= x <= upper, entry by entry. Bounds are numbers, or pytrees like x.

    >>> Box(0.0, 1.0).project(jnp.array([-1.0, 0.5, 2.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    lower: Tree = leaf()
    upper: Tree = leaf()

    def check(self, x: object) -> None:
        """lower <= upper in every entry."""
        if pytrees.is_traced((self.lower, self.upper)):
            return
        ordered = jax.tree.map(lambda a, b: bool(jnp.all(a <= b)), _like(x, self.lower), _like(x, self.upper))
        if not all(jax.tree.leaves(ordered)):
            raise ValueError(f"{self}: it needs lower <= upper in every entry.")

    def project(self, x: X) -> X:
        """min(max(x, lower), upper)."""
        return optax.projections.projection_box(x, _like(x, self.lower), _like(x, self.upper))


@part
class Ball(Constraint):
    """||x - center|| <= radius, over the whole pytree; center None = 0.

    >>> Ball(5.0).project(jnp.array([6.0, 8.0])).tolist()
    [3.0, 4.0]
    """

    radius: float = leaf()
    center: Tree = leaf(default=None)

    def check(self, x: object) -> None:
        """radius > 0."""
        values.positive("radius", self.radius, of="Ball")

    def project(self, x: X) -> X:
        """Scales x - center back to the radius where it is longer."""
        radius = jnp.asarray(self.radius, _dtype(x))
        if self.center is None:
            return optax.projections.projection_l2_ball(x, radius)
        center = _like(x, self.center)
        return optax.tree.add(center, optax.projections.projection_l2_ball(optax.tree.sub(x, center), radius))


@part
class Simplex(Constraint):
    """x >= 0 and sum of all entries = total, over the whole pytree.

    >>> Simplex().project(jnp.array([2.0, 0.0])).tolist()
    [1.0, 0.0]
    """

    total: float = leaf(default=1.0)

    def check(self, x: object) -> None:
        """total > 0."""
        values.positive("total", self.total, of="Simplex")

    def project(self, x: X) -> X:
        """The Euclidean projection, by sorting."""
        projected = optax.projections.projection_simplex(x, jnp.asarray(self.total, _dtype(x)))
        return jax.tree.map(lambda p, a: p.astype(a.dtype), projected, x)


def _dtype(x: Tree) -> jnp.dtype:
    return jnp.dtype(optax.tree.dtype(x))


def _like(x: Tree, bound: Tree) -> Tree:
    """A bound as a pytree like x: a number stands for every entry."""
    if jax.tree.structure(bound) == jax.tree.structure(0.0) and jnp.ndim(bound) == 0:
        return optax.tree.full_like(x, bound)
    return jax.tree.map(lambda a, b: jnp.broadcast_to(jnp.asarray(b, a.dtype), a.shape), x, bound)


Parts: TypeAlias = "Constraint | Mapping[str, Parts] | Sequence[Parts]"


@part
class Product(Constraint):
    """A constraint for each part of x: a pytree of constraints whose structure is the upper part of that of x.

    >>> import jax.numpy as jnp
    >>> from bilevel.problem.constraints import NonNegative, Unconstrained
    >>> both = Product({"penalty": NonNegative(), "net": Unconstrained()})
    >>> both.project({"penalty": jnp.array([-1.0]), "net": jnp.array([-1.0])})["penalty"].tolist()
    [0.0]
    """

    parts: Parts = leaf()

    def check(self, x: object) -> None:
        """Every constraint for its own part of x."""
        jax.tree.map(lambda c, part: getattr(c, "check", lambda _: None)(part), self.parts, x, is_leaf=_is_constraint)

    def project(self, x: X) -> X:
        """Projects every part onto its own set."""
        return jax.tree.map(lambda c, part: _constraint(c).project(part), self.parts, x, is_leaf=_is_constraint)


def _constraint(value: object) -> Constraint:
    if isinstance(value, type) or not _is_constraint(value):
        raise TypeError(f"Product(parts=...) has {value!r}: it needs one of bl.constraints for each part of x.")
    return value  # type: ignore[return-value]


def _is_constraint(value: object) -> bool:
    return hasattr(value, "project")
