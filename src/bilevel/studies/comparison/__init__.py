"""Solvers compared at equal budgets, each with rates tuned on the same grid."""
