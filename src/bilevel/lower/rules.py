"""Rules: functions from a rate to an optax transformation.

`Plateau` is a rule beyond optax's own: its rate falls on plateaus.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from bilevel._core import values
from bilevel._core.module import part

__all__ = ["Plateau"]

Rule: TypeAlias = Callable[..., optax.GradientTransformation]
"""rate -> transformation: `optax.sgd`, `optax.adam`, a `functools.partial` of one, or a `Plateau`."""


def needs_value(rule: Rule) -> bool:
    """Whether a rule cannot do without the loss."""
    transformation, zero = rule(0.1), jnp.zeros(())
    try:
        transformation.update(zero, transformation.init(zero), zero)
    except TypeError:
        return True
    return False


@part
class Plateau:
    """A rule whose rate falls when a loss does not: optax's `reduce_on_plateau`, averaged over `every` steps.

    As an upper rule it watches the weighted validation loss of the batches, sum_i weights_i f_i; as a lower rule,
    each task's own training loss g_i. Test data are never looked at.

    Args:
        rule: the rule whose steps are made shorter.
        patience: the rate falls after this number of averages without a lower one.
        every: number of steps in an average.
        factor: what the rate is multiplied by.
        rtol: an average counts as lower if it is below (1 - rtol) times the lowest so far.

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
        values.whole("patience", self.patience, of="Plateau")
        values.whole("every", self.every, of="Plateau")
        values.number("factor", self.factor, above=0, below=1, of="Plateau")
        values.number("rtol", self.rtol, above=0, below=1, of="Plateau")
        if not callable(self.rule):
            raise TypeError(f"Plateau(rule={self.rule!r}): it needs a function from a rate to a transformation.")

    def __call__(self, rate: ArrayLike) -> optax.GradientTransformation:
        """The transformation for a rate."""
        reduced = optax.contrib.reduce_on_plateau(self.factor, self.patience, self.rtol, accumulation_size=self.every)
        return optax.chain(self.rule(rate), reduced)
