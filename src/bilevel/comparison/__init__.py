"""Solvers compared at equal budgets, each with rates tuned on the same grid."""

from bilevel.comparison.compare import Comparison, compare
from bilevel.comparison.profiles import Grid

__all__ = ["Comparison", "Grid", "compare"]
