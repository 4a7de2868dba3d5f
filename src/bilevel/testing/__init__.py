"""Conformance suites: check a part of your own as every part of its kind is checked.

Each is a function that raises an AssertionError which says what is wrong, so that it runs in any test framework:

    from bilevel.testing import check_weighting

    def test_my_weighting():
        check_weighting(MyWeighting(), tasks=5)
"""

from bilevel.testing.parts import check_constraint, check_hypergradient, check_weighting
from bilevel.testing.solvers import check_solver

__all__ = ["check_constraint", "check_hypergradient", "check_solver", "check_weighting"]
