"""Solvers compared at equal budgets, each with rates tuned on the same grid."""

from bilevel.comparison.comparing import Comparison, compare
from bilevel.comparison.runner import Grid

__all__ = ["Comparison", "Grid", "compare"]
