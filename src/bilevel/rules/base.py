"""Rules: functions from a rate to an optax transformation, and how they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

Rule: TypeAlias = Callable[..., optax.GradientTransformation]
"""rate -> transformation: `optax.sgd`, `optax.adam`, a `functools.partial` of one, or a `Plateau`."""

_Reduced = optax.contrib.ReduceLROnPlateauState


def update(
    transformation: optax.GradientTransformation,
    gradient: optax.Updates,
    state: optax.OptState,
    point: optax.Params,
    value: ArrayLike,
) -> tuple[optax.Updates, optax.OptState]:
    """The transformation's updates and next state; the loss is passed on, as some rules watch it."""
    return optax.with_extra_args_support(transformation).update(gradient, state, point, value=value)


def needs_value(rule: Rule) -> bool:
    """Whether a rule cannot do without the loss."""
    transformation, zero = rule(0.1), jnp.zeros(())
    try:
        transformation.update(zero, transformation.init(zero), zero)
    except TypeError:
        return True
    return False


def reduction(state: optax.OptState) -> ArrayLike:
    """What plateaus have multiplied the rate by so far; 1 for a rule that watches none."""
    found = [s for s in jax.tree.leaves(state, is_leaf=lambda s: isinstance(s, _Reduced)) if isinstance(s, _Reduced)]
    return found[0].scale if found else 1.0
