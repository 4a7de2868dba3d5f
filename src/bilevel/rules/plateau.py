"""Rules for x and y beyond optax's own: functions from a rate to an optax transformation."""

from __future__ import annotations

from typing import Any

import optax

from bilevel._core.module import part
from bilevel.rules.base import Rule



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
