"""Where a solver's missing rates come from: measured, relative to sizes, or given together.

Every bilevel solver takes `rates=` any of them. What is given to the solver itself (`upper_lr`, `lower_lr`, the
weighting's `lr`) wins.
"""

from bilevel.rates.given import Given, Scaled, constant, cosine, linear
from bilevel.rates.measured import Measured
from bilevel.rates.protocol import Rates
from bilevel.rates.relative import Relative

__all__ = ["Given", "Measured", "Rates", "Relative", "Scaled", "constant", "cosine", "linear"]
