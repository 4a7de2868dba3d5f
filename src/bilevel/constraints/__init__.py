"""The set X that x must stay in. A constraint is a part with one method, `project(x)`."""

from bilevel.constraints.product import Product
from bilevel.constraints.sets import Ball, Box, NonNegative, Simplex, Unconstrained

__all__ = ["Ball", "Box", "NonNegative", "Product", "Simplex", "Unconstrained"]
