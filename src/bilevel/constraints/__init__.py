"""The set X that x must stay in.

`Constraint` is the base to write one's own from, and says what it must do; `bl.testing.check_constraint` checks it.
"""

from bilevel.constraints.base import Constraint
from bilevel.constraints.product import Product
from bilevel.constraints.sets import Ball, Box, NonNegative, Simplex, Unconstrained

__all__ = ["Ball", "Box", "Constraint", "NonNegative", "Product", "Simplex", "Unconstrained"]
