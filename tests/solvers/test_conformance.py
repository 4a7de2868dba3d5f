"""Every exported solver goes through the suite that users have; a new one joins by being exported."""

import inspect

import pytest

import bilevel as bl
from bilevel.hypergradients import Neumann, RandomNeumann
from bilevel.testing import check_solver
from bilevel.weightings import SimplexAscent
from every_solver import QUICK, every

# What a kind of problem needs to be given.
OPTIONS = {
    bl.Problem: {"upper_lr": 0.05, "lower_lr": 0.2, "weighting": SimplexAscent(0.05)},
    bl.MinMaxProblem: {"upper_lr": 0.05, "weighting": SimplexAscent(0.05)},
    bl.MultiBlockProblem: {"upper_lr": 0.05, "lower_lr": 0.2, "dual_lr": 0.1},
}


# In float32 a line search decides by rounding which step is taken, so that programs that differ by rounding part ways.
BY_ITS_OWN_TESTS = {"Descent"}


@pytest.mark.parametrize("name", every([name for name in bl.solvers.__all__ if name not in BY_ITS_OWN_TESTS]))
def test_every_exported_solver_conforms(name):
    kind = getattr(bl, name)
    solver = kind(**OPTIONS[kind.problem_type])
    if isinstance(getattr(solver, "hypergradient", None), RandomNeumann):
        solver = solver.replace(hypergradient=Neumann(3))  # which draws nothing by a task's place
    check_solver(solver)


def test_every_base_of_a_solver_is_that_of_one_in_the_usual_suite():
    quick = [getattr(bl, name) for name in QUICK]
    bases = {getattr(bl, name).__mro__[1] for name in bl.solvers.__all__}
    assert bases <= {kind.__mro__[1] for kind in quick} | set(quick)


@pytest.mark.parametrize("name", bl.solvers.__all__)
def test_a_solver_is_one_file_that_says_what_it_does(name):
    kind = getattr(bl, name)
    module = inspect.getmodule(kind)
    assert "Reference:" in module.__doc__
    assert all(kind.card)
    assert kind.__doc__.strip()
