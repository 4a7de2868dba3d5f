"""Min-max multi-objective bilevel optimization in JAX.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

x is shared, every task fits its own y_i, and the worst task must do well.
"""

from bilevel import (
    constraints,
    datasets,
    hypergradients,
    minmax,
    problems,
    rules,
    solvers,
    theory,
    trackers,
    weightings,
)
from bilevel.comparison import Comparison, compare
from bilevel.cost import Cost, cost
from bilevel.diagnostics import adapt, certify, check_hypergradient, check_problem
from bilevel.grouping import Task
from bilevel.minmax import MinMaxProblem
from bilevel.multiblock import MultiBlockProblem
from bilevel.plotting import plot
from bilevel.problem import Problem
from bilevel.recommended import recommended
from bilevel.result import Result, load
from bilevel.results import Results
from bilevel.solve import solve
from bilevel.solvers import *  # noqa: F403  (a new solver is exported by its own line in solvers/__init__.py)
from bilevel.sources import Generator

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
