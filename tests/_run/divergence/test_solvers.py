"""Every exported solver, with a rate that is far too large: it is told what broke, and smaller rates mend it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import driver
from bilevel._run.divergence import SmallerRates, Stop
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from bilevel.hypergradients import Neumann, RandomNeumann
from bilevel.testing import common
from bilevel.weightings import SimplexAscent
from every_solver import every

STEPS = 1500
QUANTITIES = ("y", "loss", "direction", "x", "weights")
# Rates at which all solvers of a kind converge, and one of them so large that none does.
RATES = {
    bl.Problem: ({"upper_lr": 0.02, "lower_lr": 0.1, "weighting": SimplexAscent(0.01)}, {"lower_lr": 100.0}),
    bl.MinMaxProblem: ({"upper_lr": 0.05, "weighting": SimplexAscent(0.05)}, {"upper_lr": 100.0}),
    bl.MultiBlockProblem: ({"upper_lr": 0.05, "lower_lr": 0.1, "dual_lr": 0.1}, {"lower_lr": 100.0}),
}


def runs(name, policy, seeds):
    """Of two tasks that form one group, without walls, which would hold x."""
    kind = getattr(bl, name)
    calm, large = RATES[kind.problem_type]
    solver = kind(**calm | large)
    if isinstance(getattr(solver, "hypergradient", None), RandomNeumann):
        solver = solver.replace(hypergradient=Neumann(3))
    problem, x, _ = common.make(common.Setting(kind.problem_type, order=(0, 2)), jnp.float64)
    free = problem.replace(constraint=bl.constraints.Unconstrained())
    return [Run(free, solver, x, None, seed, STEPS, on_divergence=policy) for seed in seeds]


def finite(result):
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((result.x, dict(result.y), result.weights)))


# Of every kind of problem, with one loop and two, with tables, with penalties, and with a period.
FEW = ("F2SA", "GDA", "MMB", "MORBiT", "SABA", "VRBO")
RATED = [name for name in bl.solvers.__all__ if hasattr(getattr(bl, name), "upper_lr")]


@pytest.mark.parametrize("name", every(RATED, quick=FEW))
def test_a_rate_too_large_is_told_with_step_task_and_quantity(name):
    [run] = runs(name, Stop(), [0])
    result = driver.run_one(run, Quiet())
    assert result.status == "diverged"
    [event] = result.divergences
    assert event.quantity in QUANTITIES
    assert event.task in run.problem.names if event.quantity in ("y", "loss") else event.task is None
    assert event.step == result.steps < STEPS
    assert f"{name} diverged: at step {event.step} " in event.message
    assert "Try a smaller" in event.message
    assert finite(result)


@pytest.mark.parametrize("name", every(RATED, quick=FEW))
def test_smaller_rates_mend_it(name):
    [run] = runs(name, SmallerRates(1e-2), [0])
    result = driver.run_one(run, Quiet())
    assert result.status == "finished"
    assert 1 <= len(result.divergences) <= 2
    assert finite(result)
    assert np.all(np.isfinite(result.losses))
    assert result.worst < 10 * max(1.0, abs(result.history.worst[0]))


@pytest.mark.slow  # as a batch each is compiled once more
@pytest.mark.parametrize("name", RATED)
def test_lanes_of_a_batch_diverge_as_runs_do(name):
    described = runs(name, Stop(), range(2))
    for result, run in zip(driver.run_lanes(described, Quiet().split(2)), described, strict=True):
        alone = driver.run_one(run, Quiet())
        [event], [other] = result.divergences, alone.divergences
        assert (result.status, event.quantity, event.task) == ("diverged", other.quantity, other.task)
        assert abs(event.step - other.step) <= 1  # rounding differs
        assert finite(result)
