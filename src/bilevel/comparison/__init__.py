"""Solvers compared at equal budgets, each with rates tuned on the same grid."""

from bilevel.comparison.compare import compare
from bilevel.comparison.result import Comparison
from bilevel.comparison.tuning import Grid

__all__ = ["Comparison", "Grid", "compare"]
