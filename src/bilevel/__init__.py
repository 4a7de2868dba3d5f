"""Min-max multi-objective bilevel optimization in JAX.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

x is shared, every task fits its own y_i, and the worst task must do well.
"""

from bilevel import (
    constraints,
    datasets,
    hypergradients,
    problems,
    rules,
    solvers,
    theory,
    trackers,
    weightings,
)
from bilevel._cost.report import Cost, cost
from bilevel._run.solving import solve
from bilevel.comparison import Comparison, compare
from bilevel.diagnostics import adapt, certify, check_hypergradient, check_problem
from bilevel.problem import minmax
from bilevel.problem.minmax import MinMaxProblem
from bilevel.problem.multiblock import MultiBlockProblem
from bilevel.problem.problem import Problem
from bilevel.problem.sources import Generator
from bilevel.problem.task import Task
from bilevel.results.plots import plot
from bilevel.results.result import Result, load
from bilevel.results.results import Results
from bilevel.solvers import *  # noqa: F403  (a new solver is exported by its own line in solvers/__init__.py)
from bilevel.solvers.recommendation import recommended

__version__ = "0.1.0"


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # what users look for, without the modules it is made of


__all__ = [
    *solvers.__all__,
    "Comparison",
    "Cost",
    "Generator",
    "MinMaxProblem",
    "MultiBlockProblem",
    "Problem",
    "Result",
    "Results",
    "Task",
    "adapt",
    "certify",
    "check_hypergradient",
    "check_problem",
    "compare",
    "constraints",
    "cost",
    "datasets",
    "hypergradients",
    "load",
    "minmax",
    "plot",
    "problems",
    "recommended",
    "rules",
    "solve",
    "solvers",
    "theory",
    "trackers",
    "weightings",
]
