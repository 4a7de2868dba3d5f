"""Diagnostics of problems, estimators, runs and solutions; y for unseen tasks.

certify              Theorem 1's gaps at a point, measured
check_problem        all that is wrong with a problem, and how convex its lower problems are
check_hypergradient  an estimator against the true hypergradient
check_result         all that is wrong with a finished run
adapt                unseen tasks: x frozen, y fitted
refit                the tasks of a run again: x frozen, y fitted on training and validation rows
baselines            what each task could reach alone, on rows held out
loss_errors          the standard error of every task's loss
"""

from bilevel.diagnostics.adaptation import Adaptation, adapt, refit
from bilevel.diagnostics.certificate import Certificate, certify
from bilevel.diagnostics.checks import ProblemReport, check_problem, check_result
from bilevel.diagnostics.hypergradient_report import HypergradientReport, check_hypergradient
from bilevel.diagnostics.single_task import baselines, loss_errors

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
