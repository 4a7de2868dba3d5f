"""Other objectives than the worst loss: every solver reaches the point that an independent convex solve finds."""

import functools

import numpy as np
import pytest
from scipy.optimize import minimize

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.hypergradients.trackers import Storm
from bilevel.studies.problems import adapted_ball, reduced_ball
from bilevel.weightings import Average, Exponentiated, Ratio, Regret, Shrunk, SimplexAscent, UpperBound
from closed_form_solvers import SERIES, SETTINGS
from every_solver import QUICK, every

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)

POINTS = np.array([[0, 0], [4, 0], [1, 3], [2, 2.0]])
UNITS = np.array([1.0, 2.0, 0.8, 1.25])  # c
BASELINE = np.array([1.3, 0.0, 0.4, 0.2])  # b


def solved(units=1.0, baseline=0.0, scale=1.0):
    """x and the weights at which max_i (scale |x - p_i|^2 / (2 c_i) - b_i), the smallest t above all, is least."""
    units, baseline = np.broadcast_to(units, 4), np.broadcast_to(baseline, 4)
    height = lambda z: scale * np.sum((z[:2] - POINTS) ** 2, axis=1) / (2 * units) - baseline  # noqa: E731
    slope = lambda z: np.c_[-scale * (z[:2] - POINTS) / units[:, None], np.ones(4)]  # noqa: E731
    room = {"type": "ineq", "fun": lambda z: z[2] - height(z), "jac": slope}
    start = np.array([2.0, 1.0, 20.0])
    last = minimize(
        lambda z: z[2], start, jac=lambda z: np.array([0, 0, 1.0]), constraints=[room], method="SLSQP", tol=1e-15
    )
    active = np.flatnonzero(height(last.x) > last.x[2] - 1e-7)
    rows = np.r_[((last.x[:2] - POINTS) / units[:, None])[active].T, np.ones((1, len(active)))]
    weights = np.zeros(4)
    weights[active] = np.linalg.lstsq(rows, np.array([0, 0, 1.0]), rcond=None)[0]
    return last.x[:2], weights


def around(weighting):
    """The weighting that compares tasks by f_i / c_i - b_i: both the scale and the shift of every task."""
    return Ratio(UNITS, Regret(BASELINE, weighting))


def test_the_reference_is_the_closed_form_where_there_is_one():
    x, weights = solved()
    assert_close(x, [2, 1], atol=1e-7)
    assert_close(weights, [1 / 4, 5 / 12, 1 / 3, 0], atol=1e-7)
    x, weights = solved(UNITS, BASELINE)
    assert np.abs(x - [2, 1]).max() > 0.3  # another point
    assert np.sum(weights > 0.05) == 3


@pytest.mark.parametrize("name", every(SETTINGS, quick=(*QUICK, "MASOBA, per task")))
def test_every_bilevel_solver_reaches_the_scaled_and_shifted_solution(run, padded_ball, name):
    solver, steps = SETTINGS[name]
    state = run(solver.replace(weighting=around(solver.weighting)), padded_ball(), 2 * steps)
    x, weights = solved(UNITS, BASELINE)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


PER_TASK = {
    "FSLA": bl.FSLA(0.1, 0.4, momentum=0.3, tracker=Storm(per_task=True)),
    "MRBO": bl.MRBO(0.1, 0.4, Exact(), momentum=0.3, tracker=Storm(per_task=True)),
    "SPABA": bl.SPABA(0.1, 0.4, tracker=Storm(per_task=True)),
    "VRBO": bl.VRBO(0.1, 0.4, SERIES, tracker=Storm(per_task=True)),
}


@pytest.mark.parametrize("name", PER_TASK)
def test_directions_kept_per_task_are_put_together_by_the_same_weights(run, padded_ball, name):
    state = run(PER_TASK[name].replace(weighting=around(SimplexAscent(0.02))), padded_ball(), 2000)
    x, weights = solved(UNITS, BASELINE)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


def test_f2sa_comes_near_it_as_its_penalty_grows(run, padded_ball):
    x, _ = solved(UNITS, BASELINE)
    gaps = []
    for strength in (10.0, 100.0):
        solver = bl.F2SA(0.1, 0.4, 0.4 / strength, around(SimplexAscent(0.03)), strength=strength, lower_steps=10)
        gaps.append(np.abs(run(solver, padded_ball(), 2000).x - x).max())
    assert gaps[1] < gaps[0] / 5 < 0.02


@pytest.mark.parametrize(
    ("solver", "known", "scale"),
    [
        (bl.GDA(0.1), reduced_ball(), 1.0),
        (bl.HiBSA(0.1, perturbation=0.0), reduced_ball(), 1.0),
        (bl.TRMAML(0.1), adapted_ball(), 2 * 0.8**2),
    ],
    ids=["GDA", "HiBSA", "TRMAML"],
)
def test_every_single_level_solver_reaches_the_scaled_and_shifted_solution(run, solver, known, scale):
    solver = solver.replace(weighting=around(SimplexAscent(0.02)))
    result = bl.solve(known.problem, solver, known.x, steps=3000, progress=False)
    x, weights = solved(UNITS, BASELINE, scale)
    assert_close(result.x, x, atol=1e-6)
    assert_close(result.weights, weights, atol=1e-6)


@pytest.mark.parametrize(
    ("weighting", "units", "baseline"),
    [
        (Regret(BASELINE, SimplexAscent(0.02)), 1.0, BASELINE),
        (Regret(bl.Baselines(BASELINE), Exponentiated(0.05)), 1.0, BASELINE),
        (Ratio(UNITS, SimplexAscent(0.02)), UNITS, 0.0),
        (UpperBound(BASELINE, -1.0, SimplexAscent(0.02)), 1.0, BASELINE),
        (Regret(UNITS * BASELINE, Ratio(UNITS, SimplexAscent(0.02))), UNITS, BASELINE),
    ],
    ids=["regret", "regret, multiplicative", "ratio", "bound", "regret of ratios"],
)
def test_each_objective_and_those_put_into_each_other(run, padded_ball, weighting, units, baseline):
    state = run(bl.MORBiT(0.1, 0.4, Exact(), weighting), padded_ball(), 2500)
    x, weights = solved(units, baseline)
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


def test_ratios_of_a_fixed_weighting_move_x_too(run, padded_ball):
    """With equal weights x minimises sum_i f_i / c_i: the mean of the points in proportion to 1 / c_i."""
    state = run(bl.MORBiT(0.1, 0.4, Exact(), Ratio(UNITS, Average())), padded_ball(), 500)
    assert_close(state.x, (1 / UNITS) @ POINTS / np.sum(1 / UNITS), atol=1e-9)
    assert_close(state.weights, np.full(4, 1 / 4), atol=0)


SAME = {  # as if there were nothing around the weighting
    "equal baselines": Regret(np.full(4, 0.5), SimplexAscent(0.02)),
    "unit ratios": Ratio(np.ones(4), SimplexAscent(0.02)),
    "equal bounds": UpperBound(np.full(4, 0.25), 2.0, SimplexAscent(0.02)),
    "no noise": Shrunk(np.zeros(4), SimplexAscent(0.02)),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("solver", [bl.MORBiT(0.1, 0.4, Exact()), bl.MRBO(0.1, 0.4, Exact(), momentum=0.3)], ids=repr)
def test_what_is_the_same_for_all_tasks_changes_nothing(run, padded_ball, solver, name):
    for steps in (1, 40):
        plain = run(solver.replace(weighting=SimplexAscent(0.02)), padded_ball(), steps)
        state = run(solver.replace(weighting=SAME[name]), padded_ball(), steps)
        assert_close(state.x, plain.x, atol=1e-13)
        assert_close(state.weights, plain.weights, atol=1e-13)


@pytest.mark.parametrize("noise", [0.0, 50.0])
def test_shrunk_losses_reach_from_the_worst_to_the_average(run, padded_ball, noise):
    """Without noise the worst task counts alone; where all differences are noise, all tasks count alike."""
    state = run(bl.MORBiT(0.1, 0.4, Exact(), Shrunk(np.full(4, noise), SimplexAscent(0.02))), padded_ball(), 1500)
    assert_close(state.x, POINTS.mean(axis=0) if noise else [2, 1], atol=1e-6)


# ------------------------------------------------------------------ rates that are chosen

WORST = np.max(np.sum((solved(1.0, BASELINE)[0] - POINTS) ** 2, axis=1) / 2 - BASELINE)
SHIFTS = {"positive": 0.0, "half": WORST / 2, "zero": WORST, "negative": WORST + 1, "far below": WORST + 20}


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize(("solver", "steps"), [(bl.MORBiT(), 2000), (bl.Tandem(), 4000)], ids=["MORBiT", "Tandem"])
def test_chosen_rates_suit_regrets_whatever_their_sign_at_the_solution(padded_ball, solver, steps, shift):
    """What is added to all baselines does not move the solution; regrets there are then of either sign, or zero."""
    known = padded_ball()
    weighting = Regret(BASELINE + SHIFTS[shift])
    result = bl.solve(known.problem, solver.replace(weighting=weighting), known.x, steps=steps, progress=False)
    x, weights = solved(1.0, BASELINE)
    assert_close(result.x, x, atol=1e-5)
    assert_close(result.weights, weights, atol=1e-5)


@pytest.mark.parametrize(("solver", "steps"), [(bl.MORBiT(), 2000), (bl.Tandem(), 4000)], ids=["MORBiT", "Tandem"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_chosen_rates_suit_ratios_of_any_size(padded_ball, solver, steps, size):
    known = padded_ball()
    solver = solver.replace(weighting=Ratio(size * UNITS))
    result = bl.solve(known.problem, solver, known.x, steps=steps, progress=False)
    x, weights = solved(UNITS)
    assert_close(result.x, x, atol=1e-5)
    assert_close(result.weights, weights, atol=1e-5)


@pytest.mark.parametrize(
    ("weighting", "said"),
    [
        (Regret([0.1, 0.2]), r"Regret\(baseline=array\(\[0.1, 0.2\]\)\): it needs 4 numbers, one for each task"),
        (Regret([0.1, np.nan, 0, 0]), r"Regret\(baseline\[1\]=nan\): it needs a finite number"),
        (Regret({"a": 1.0}), r"Regret\(baseline={'a': 1.0}\): it needs real numbers"),
        (Regret(bl.Baselines([0.1, np.inf, 0, 0])), r"Regret\(baseline\[1\]=inf\): it needs a finite number"),
        (Ratio([0.1, 0.2, 0, 1]), r"Ratio\(baseline\[2\]=0.0\): it needs a positive number"),
        (UpperBound([0.1, 0.2, -1, 1]), r"UpperBound\(errors\[2\]=-1.0\): it needs a finite number, 0 or more"),
        (UpperBound(np.ones(4), np.nan), r"UpperBound\(factor=nan\)"),
        (Shrunk([0.1]), r"Shrunk\(errors=array\(\[0.1\]\)\): it needs 4 numbers"),
        (bl.weightings.Folds(3), r"Folds\(folds=3\): it needs a multiple of 3 tasks, not 4"),
        (Ratio(np.ones(4), SimplexAscent(floor=2.0)), r"SimplexAscent\(floor=2.0\)"),
    ],
)
def test_bad_numbers_are_refused_by_name(padded_ball, weighting, said):
    known = padded_ball()
    with pytest.raises(ValueError, match=said):
        bl.solve(known.problem, bl.MORBiT(weighting=weighting), known.x, steps=1, progress=False)
