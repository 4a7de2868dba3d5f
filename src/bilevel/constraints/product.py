"""One constraint for each part of a pytree."""

from __future__ import annotations

from typing import Any

import jax

from bilevel._core.module import leaf, part


@part
class Product:
    """A constraint for each part of x: a pytree of constraints that x has the shape of, down to them.

    >>> import jax.numpy as jnp
    >>> from bilevel.constraints import NonNegative, Unconstrained
    >>> both = Product({"penalty": NonNegative(), "net": Unconstrained()})
    >>> both.project({"penalty": jnp.array([-1.0]), "net": jnp.array([-1.0])})["penalty"].tolist()
    [0.0]
    """

    parts: Any = leaf()

    def project(self, x: Any) -> Any:
        """Projects every part onto its own set."""
        return jax.tree.map(lambda c, part: c.project(part), self.parts, x, is_leaf=lambda c: hasattr(c, "project"))
