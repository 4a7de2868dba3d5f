"""The base of constraints."""

from __future__ import annotations

import abc
from typing import TypeVar

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
