"""Looking at a problem, an estimator, a run, a solution, or tasks that were not there before.

certify              Theorem 1's gaps at a point, measured
check_problem        all that is wrong with a problem, and how convex its lower problems are
check_hypergradient  an estimator against the true hypergradient
check_result         all that is wrong with a finished run
adapt                unseen tasks: x frozen, y fitted
"""

from bilevel.diagnostics.adaptation import Adaptation, adapt
from bilevel.diagnostics.certificate import Certificate, certify
from bilevel.diagnostics.hypergradient_report import HypergradientReport, check_hypergradient
from bilevel.diagnostics.problem_report import ProblemReport, check_problem
from bilevel.diagnostics.result_report import check_result

__all__ = [
    "Adaptation",
    "Certificate",
    "HypergradientReport",
    "ProblemReport",
    "adapt",
    "certify",
    "check_hypergradient",
    "check_problem",
    "check_result",
]
