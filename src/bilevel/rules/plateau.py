"""Rules for x and y beyond optax's own: functions from a rate to an optax transformation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bilevel._core.module import part

Rule = Callable[[Any], optax.GradientTransformation]
_Reduced = optax.contrib.ReduceLROnPlateauState


@part
class Plateau:
    """A rule whose rate falls when a loss does not: optax's `reduce_on_plateau`, averaged over `every` steps.

    As an upper rule it watches the weighted validation loss of the batches, sum_i weights_i f_i; as a lower rule,
    every task its own training loss g_i. Test data steer nothing.

    Args:
        rule: the rule whose steps are made shorter.
        patience: so many averages without a lower one, and the rate falls.
        every: steps that an average is taken over.
        factor: what the rate is multiplied by.
        rtol: how much lower, as a part of the lowest average, counts as lower.

    The defaults are those of the MORBiT paper's appendix C and of PyTorch's ReduceLROnPlateau.

    >>> import bilevel as bl
    >>> solver = bl.MORBiT(0.01, 0.01, upper_rule=bl.rules.Plateau(patience=5))
    """

    rule: Rule = optax.sgd
    patience: int = 10
    every: int = 100
    factor: float = 0.1
    rtol: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("patience", "every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Plateau({name}={value!r}): it needs a whole number, 1 or more.")
        for name in ("factor", "rtol"):
            value = getattr(self, name)
            if isinstance(value, str) or not 0 < value < 1:
                raise ValueError(f"Plateau({name}={value!r}): it needs a number between 0 and 1.")
        if not callable(self.rule):
            raise TypeError(f"Plateau(rule={self.rule!r}): it needs a function from a rate to a transformation.")

    def __call__(self, rate: Any) -> optax.GradientTransformation:
        """The transformation for a rate."""
        reduced = optax.contrib.reduce_on_plateau(self.factor, self.patience, self.rtol, accumulation_size=self.every)
        return optax.chain(self.rule(rate), reduced)


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
