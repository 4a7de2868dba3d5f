"""Min-max multi-objective bilevel optimization in JAX.

    min over x in X of  max over tasks i of  f_i(x, y_i*(x)),      y_i*(x) = argmin over y of g_i(x, y)

x is shared, every task fits its own y_i, and the worst task must do well.

Every name is imported when it is first used: `import bilevel` costs little, and a program pays for what it uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

from bilevel import solvers  # their names alone: each is imported when it is used

if TYPE_CHECKING:  # the same names for type checkers and editors, which do not read the table
    from bilevel import estimators, hypergradients, lower, rates, testing, weightings
    from bilevel._core.module import leaf, part
    from bilevel._run import checkpoints, distributed, divergence, engines, loggers
    from bilevel._run.checkpoints import Checkpoint
    from bilevel._run.solving import solve
    from bilevel.diagnostics import (
        adapt,
        baselines,
        certify,
        check_hypergradient,
        check_problem,
        check_result,
        loss_errors,
        refit,
        theory,
    )
    from bilevel.diagnostics.costs import Cost, cost
    from bilevel.hypergradients import trackers
    from bilevel.lower import rules
    from bilevel.problem import constraints, minmax
    from bilevel.problem.cross_fitting import cross_fit
    from bilevel.problem.distribution import TaskDistribution
    from bilevel.problem.minmax import MinMaxProblem
    from bilevel.problem.multiblock import MultiBlockProblem
    from bilevel.problem.per_task import PerTask
    from bilevel.problem.problem import Problem
    from bilevel.problem.sources import Generator
    from bilevel.problem.task import Task
    from bilevel.results.plots import plot
    from bilevel.results.result import Result, load
    from bilevel.results.results import Results
    from bilevel.solvers import *  # noqa: F403
    from bilevel.solvers import sampling
    from bilevel.solvers._base.solver import Solver
    from bilevel.solvers._base.state import Info, State
    from bilevel.solvers.growing import add_tasks
    from bilevel.solvers.recommendation import recommended
    from bilevel.studies import datasets, problems
    from bilevel.studies.comparison.comparing import Comparison, compare
    from bilevel.studies.comparison.runner import Grid
    from bilevel.studies.datasets.splitting import split
    from bilevel.weightings.baselines import Baselines

__version__ = "0.1.0"

# Where each name lives; a new one also goes into __all__ and the imports above, and a test compares the three.
_NAMES = {
    "bilevel._core.module": "leaf part",
    "bilevel.diagnostics.costs": "Cost cost",
    "bilevel._run.checkpoints": "Checkpoint",
    "bilevel._run.solving": "solve",
    "bilevel.studies.comparison.comparing": "Comparison compare",
    "bilevel.studies.comparison.runner": "Grid",
    "bilevel.studies.datasets.splitting": "split",
    "bilevel.diagnostics": "adapt baselines certify check_hypergradient check_problem check_result loss_errors refit",
    "bilevel.problem.cross_fitting": "cross_fit",
    "bilevel.problem.distribution": "TaskDistribution",
    "bilevel.problem.sources": "Generator",
    "bilevel.problem.minmax": "MinMaxProblem",
    "bilevel.problem.multiblock": "MultiBlockProblem",
    "bilevel.problem.per_task": "PerTask",
    "bilevel.problem.problem": "Problem",
    "bilevel.problem.task": "Task",
    "bilevel.results.plots": "plot",
    "bilevel.results.result": "Result load",
    "bilevel.results.results": "Results",
    "bilevel.solvers._base.solver": "Solver",
    "bilevel.solvers._base.state": "Info State",
    "bilevel.solvers.growing": "add_tasks",
    "bilevel.solvers.recommendation": "recommended",
    "bilevel.weightings.baselines": "Baselines",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULE_OF |= dict.fromkeys(solvers.__all__, "bilevel.solvers")
_SUBMODULES = {
    "checkpoints": "bilevel._run.checkpoints",
    "constraints": "bilevel.problem.constraints",
    "datasets": "bilevel.studies.datasets",
    "distributed": "bilevel._run.distributed",
    "divergence": "bilevel._run.divergence",
    "engines": "bilevel._run.engines",
    "estimators": "bilevel.estimators",
    "hypergradients": "bilevel.hypergradients",
    "loggers": "bilevel._run.loggers",
    "lower": "bilevel.lower",
    "minmax": "bilevel.problem.minmax",
    "problems": "bilevel.studies.problems",
    "rates": "bilevel.rates",
    "rules": "bilevel.lower.rules",
    "sampling": "bilevel.solvers.sampling",
    "testing": "bilevel.testing",
    "theory": "bilevel.diagnostics.theory",
    "trackers": "bilevel.hypergradients.trackers",
    "weightings": "bilevel.weightings",
}


class _PublicNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets `from bilevel.datasets import sinusoids` find a module by its public name, wherever it is kept."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """A module of the table whose place is another one, or a module in it."""
        package, _, name = fullname.partition(".")
        first, _, rest = name.partition(".")
        place = _SUBMODULES.get(first) if package == __name__ else None
        if place is None or place == f"{__name__}.{first}":
            return None
        return ModuleSpec(fullname, self, origin=f"{place}.{rest}" if rest else place)

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty one, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """The module itself, once: what it defines exists once too."""
        spec = module.__spec__
        assert spec is not None
        assert spec.origin is not None
        sys.modules[spec.name] = importlib.import_module(spec.origin)


sys.meta_path.insert(0, _PublicNames())


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used, and keeps it."""
    if name in _SUBMODULES:
        found = importlib.import_module(_SUBMODULES[name])
    elif name in _MODULE_OF:
        found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]  # the public names only


__all__ = [
    "Baselines",
    "Checkpoint",
    "Comparison",
    "Cost",
    "Generator",
    "Grid",
    "Info",
    "MinMaxProblem",
    "MultiBlockProblem",
    "PerTask",
    "Problem",
    "Result",
    "Results",
    "Solver",
    "State",
    "Task",
    "TaskDistribution",
    "adapt",
    "add_tasks",
    "baselines",
    "certify",
    "check_hypergradient",
    "check_problem",
    "check_result",
    "checkpoints",
    "compare",
    "constraints",
    "cost",
    "cross_fit",
    "datasets",
    "distributed",
    "divergence",
    "engines",
    "estimators",
    "hypergradients",
    "leaf",
    "load",
    "loggers",
    "loss_errors",
    "lower",
    "minmax",
    "part",
    "plot",
    "problems",
    "rates",
    "recommended",
    "refit",
    "rules",
    "sampling",
    "solve",
    "solvers",
    "split",
    "testing",
    "theory",
    "trackers",
    "weightings",
]
__all__ += solvers.__all__
