"""One constraint for each part of a pytree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

import jax

from bilevel._core.module import leaf, part
from bilevel.constraints.base import Constraint

X = TypeVar("X")
Parts: TypeAlias = "Constraint | Mapping[str, Parts] | Sequence[Parts]"


@part
class Product(Constraint):
    """A constraint for each part of x: a pytree of constraints whose structure is the upper part of that of x.

    >>> import jax.numpy as jnp
    >>> from bilevel.constraints import NonNegative, Unconstrained
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
