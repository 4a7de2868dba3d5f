"""Solvers compared at equal budgets, each with rates tuned on the same grid."""

from bilevel.studies.comparison.comparing import Comparison, compare
from bilevel.studies.comparison.runner import Grid

__all__ = ["Comparison", "Grid", "compare"]
