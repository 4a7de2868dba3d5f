"""Looking at a problem, an estimator, a run, a solution, or tasks that were not there before.

certify              Theorem 1's gaps at a point, measured
check_problem        all that is wrong with a problem, and how convex its lower problems are
check_hypergradient  an estimator against the true hypergradient
check_result         all that is wrong with a finished run
adapt                unseen tasks: x frozen, y fitted
refit                the tasks of a run again: x frozen, y fitted on training and validation rows
baselines            what each task could reach alone, on rows held out
loss_errors          how well every task's loss is known
"""

from bilevel.diagnostics.adaptation import Adaptation, adapt
from bilevel.diagnostics.certificate import Certificate, certify
from bilevel.diagnostics.hypergradient_report import HypergradientReport, check_hypergradient
from bilevel.diagnostics.problem_report import ProblemReport, check_problem
from bilevel.diagnostics.refitting import refit
from bilevel.diagnostics.result_report import check_result
from bilevel.diagnostics.row_losses import loss_errors
from bilevel.diagnostics.single_task import baselines

__all__ = [
    "Adaptation",
    "Certificate",
    "HypergradientReport",
    "ProblemReport",
    "adapt",
    "baselines",
    "certify",
    "check_hypergradient",
    "check_problem",
    "check_result",
    "loss_errors",
    "refit",
]
