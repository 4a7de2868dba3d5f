"""Min-max multi-objective bilevel optimization in JAX.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

x is shared, every task fits its own y_i, and the worst task must do well.
"""

from bilevel import constraints, hypergradients, problems, solvers, trackers, weightings
from bilevel.grouping import Task
from bilevel.problem import Problem
from bilevel.result import Result
from bilevel.results import Results
from bilevel.solve import solve
from bilevel.solvers import *  # noqa: F403  (a new solver is exported by its own line in solvers/__init__.py)
from bilevel.sources import Generator

__version__ = "0.1.0"

__all__ = [
    *solvers.__all__,
    "Generator",
    "Problem",
    "Result",
    "Results",
    "Task",
    "constraints",
    "hypergradients",
    "problems",
    "solve",
    "solvers",
    "trackers",
    "weightings",
]
