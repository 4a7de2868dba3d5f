"""Solvers reach the solutions that are known in closed form."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.hypergradients import ConjugateGradient, Exact, Neumann, Tracked
from bilevel.problem.constraints import Box, NonNegative
from bilevel.studies.problems import bounded_ball, enclosing_ball, opposed_slopes, shrinkage
from bilevel.weightings import CVaR, Exponentiated, Fixed, SimplexAscent

assert_close = functools.partial(np.testing.assert_allclose, rtol=0)

POINTS = np.array([[0, 0], [4, 0], [1, 3], [2, 2]])  # whose enclosing ball is sought

# A box without walls is no constraint, and compiles together with the bounded ball.
BALL = enclosing_ball(Box(-jnp.inf, jnp.array([jnp.inf, jnp.inf])))
RATES = (0.1, 0.4, 0.02)  # of x, y and the weights
KNOWN = {
    "opposed slopes": (opposed_slopes(), RATES),
    "enclosing ball": (BALL, RATES),
    "bounded ball": (bounded_ball(), (0.1, 0.4, 0.05)),
    "shrinkage": (shrinkage(), (1.0, 0.4, 0.1)),
}


def morbit(weighting, hypergradient=Exact(), rates=RATES):  # noqa: B008  (estimators are frozen)
    return bl.MORBiT(rates[0], rates[1], hypergradient, weighting)


def assert_reached(state, x, weights):
    assert_close(state.x, x, atol=1e-6)
    assert_close(state.weights, weights, atol=1e-6)


@pytest.mark.parametrize("hypergradient", [Exact(), ConjugateGradient(), Neumann(40), Tracked()], ids=repr)
@pytest.mark.parametrize("name", KNOWN)
def test_morbit_reaches_the_min_max_solution(run, padded_ball, name, hypergradient):
    known, rates = KNOWN[name]
    if "ball" in name:  # in one group, which compiles faster than four
        known = known._replace(problem=padded_ball().problem.replace(constraint=known.problem.constraint))
    state = run(morbit(SimplexAscent(rates[2]), hypergradient, rates), known, 1000)
    assert_reached(state, known.solution, known.weights)
    worst = jnp.max(known.problem.validation_losses(state.x, state.y))
    assert float(worst) == pytest.approx(known.value, abs=1e-6)


def test_every_lower_variable_of_the_ball_reaches_its_own_solution(run):
    state = run(morbit(SimplexAscent(0.02)), BALL, 1000)
    assert [y.shape for y in state.y] == [(1, 2), (1, 3), (1, 4), (1, 5)]
    for y, group in zip(state.y, BALL.problem.groups, strict=True):
        assert_close(y[0], group.train.data["B"][0, 0] @ BALL.solution, atol=1e-6)


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        (SimplexAscent(0.05, pull=0.5), np.array([50, 78, 63, 0]) / 191),
        (SimplexAscent(0.05, pull=3.0), np.array([107, 141, 119, 3]) / 370),
        (SimplexAscent(0.02, floor=0.1), np.array([1 / 4, 49 / 120, 19 / 60, 1 / 40])),
        (SimplexAscent(0.05, pull=1.0, floor=0.2), np.array([81, 117.5, 91.25, 15.25]) / 305),
    ],
    ids=repr,
)
def test_a_pull_and_a_floor_move_the_ball_to_the_solution_of_their_own_problem(run, weighting, weights):
    # At any saddle point sum_i w_i (x - p_i) = 0, so that x is the weighted mean of the points.
    assert_reached(run(morbit(weighting), BALL, 1500), weights @ POINTS, weights)


@pytest.mark.parametrize(
    ("cap", "weights"), [(0.4, [0.26, 0.4, 0.34, 0]), (1 / 3, [1 / 3, 1 / 3, 1 / 3, 0])], ids=["0.4", "1/3"]
)
def test_cvar_caps_the_weights(run, padded_ball, cap, weights):
    state = run(morbit(CVaR(1 / (4 * cap), 0.02)), padded_ball(), 1500)
    assert_reached(state, weights @ POINTS, weights)


def test_multiplicative_weights_reach_the_same_solution(run, padded_ball):
    ball = padded_ball()
    state = run(morbit(Exponentiated(0.05)), ball, 1500)
    assert_reached(state, ball.solution, ball.weights)


def test_fixed_weights_give_the_weighted_mean_of_the_points(run, padded_ball):
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    assert_reached(run(morbit(Fixed(weights)), padded_ball(), 500), weights @ POINTS, weights)


def test_ttsa_gives_the_mean_of_the_points(run, padded_ball):
    state = run(bl.TTSA(0.1, 0.4, Exact()), padded_ball(), 500)
    assert_reached(state, POINTS.mean(axis=0), np.full(4, 1 / 4))


@pytest.mark.parametrize("name", ["opposed slopes", "enclosing ball", "shrinkage"])
def test_mrbo_reaches_the_min_max_solution(run, padded_ball, name):
    known, rates = KNOWN[name]
    known = padded_ball() if name == "enclosing ball" else known
    state = run(bl.MRBO(rates[0], rates[1], Exact(), SimplexAscent(rates[2]), momentum=0.3), known, 1500)
    assert_reached(state, known.solution, known.weights)


@pytest.mark.parametrize(
    ("constraint", "solution", "weights", "value"),
    [(NonNegative(), 2, [2 / 3, 1 / 3], 2 / 9), (Box(0.0, 1.0), 1, [0, 1], 1 / 2)],
    ids=["tie inside", "bound active"],
)
def test_a_ridge_penalty_is_found_inside_its_bounds_and_on_them(run, constraint, solution, weights, value):
    """g = (y - c)^2/2 + x y^2/2 and f = (y - t)^2/2 for (c, t) = (1, 1), (2, 0): y* = c/(1 + x)."""

    def upper(x, y, t):
        return jnp.mean((y - t) ** 2) / 2

    def lower(x, y, c):
        return jnp.mean((y - c) ** 2) / 2 + x * y**2 / 2

    tasks = [bl.Task(jnp.array([c]), jnp.array([t]), y=jnp.array(0.0)) for c, t in ((1.0, 1.0), (2.0, 0.0))]
    problem = bl.Problem(upper, lower, tasks, constraint)
    known = bl.problems.Known(problem, jnp.array(0.5), solution, weights, value)
    state = run(morbit(SimplexAscent(0.1), rates=(1.0, 0.3, 0.1)), known, 3000)
    assert_reached(state, solution, weights)
    losses = problem.validation_losses(state.x, state.y)
    assert float(jnp.max(losses)) == pytest.approx(value, abs=1e-6)
