"""What a rule is, and how one is applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Rule = Callable[[Any], optax.GradientTransformation]  # from a rate, which may be traced
_Reduced = optax.contrib.ReduceLROnPlateauState


def update(transformation: optax.GradientTransformation, gradient: Any, state: Any, point: Any, value: Any) -> tuple:
    """The transformation's updates and next state; it is told the loss, which some rules watch."""
    return optax.with_extra_args_support(transformation).update(gradient, state, point, value=value)


def needs_value(rule: Rule) -> bool:
    """Whether a rule cannot do without the loss."""
    transformation, zero = rule(0.1), jnp.zeros(())
    try:
        transformation.update(zero, transformation.init(zero), zero)
    except TypeError:
        return True
    return False


def reduction(state: Any) -> Any:
    """What plateaus have multiplied the rate by so far; 1 for a rule that watches none."""
    found = [s for s in jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, _Reduced)) if isinstance(s, _Reduced)]
    return found[0].scale if found else 1.0
