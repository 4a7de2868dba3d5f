"""`Given` and `Relative`: the three rates are their closed forms, and what a solver was given wins."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._core.schedules import Power
from bilevel.problem.initial_point import lower_points
from bilevel.problem.per_task import PerTask
from bilevel.rates.curvature import LowerCurvature
from bilevel.rates.protocol import Needs, RatesState
from bilevel.rates.relative import RelativeState, first_sizes


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2 + x**2  # f_x is not zero


def lower(x, y, batch):
    curvature, slope = batch
    return jnp.mean(curvature * (y - slope * x) ** 2) / 2


def make_task(curvature, slope, target):
    return bl.Task((jnp.array([curvature]), jnp.array([slope])), jnp.array([target]), y=jnp.array(0.0))


PROBLEM = bl.Problem(upper, lower, [make_task(1.0, 1.0, 2.0), make_task(2.0, 2.0, -1.0)])
START = jnp.array(1.5)
K = 100
ALL = Needs(upper=True, lower=True, weights=True, curvature=True)
X, DIRECTION = {"w": jnp.array([3.0, -4.0]), "b": jnp.array(0.5)}, {"w": jnp.ones(2), "b": jnp.array(-1.0)}
assert_close = functools.partial(np.testing.assert_allclose, rtol=1e-14)


def with_horizon(own, curvatures=None):
    known = (
        PerTask((LowerCurvature(jnp.array(curvatures), jnp.ones(2), jnp.array(curvatures)),)) if curvatures else None
    )
    return RatesState(jnp.array(float(K)), known, own)


# ------------------------------------------------------------------ given

SHAPES = {
    "constant": (bl.rates.constant, lambda t: 1.0),
    "linear": (bl.rates.linear, lambda t: 1 - t),
    "cosine": (bl.rates.cosine, lambda t: (1 + np.cos(np.pi * t)) / 2),
    "own": (lambda t: 1 / (1 + t) ** 2, lambda t: 1 / (1 + t) ** 2),
}


@pytest.mark.parametrize(("shape", "expected"), SHAPES.values(), ids=SHAPES)
def test_given_rates_have_the_shape_over_the_run(shape, expected):
    rates, state = bl.rates.Given(0.1, Power(0.3, -0.5), 0.02, shape), with_horizon(())
    for k in (0, 25, 50, 99, 100, 130):
        step, factor = jnp.array(k), expected(min(k / K, 1))
        moved = rates.upper(state, X, DIRECTION, step)
        assert_close(moved.rate, 0.1 * factor, atol=1e-17)
        assert moved.direction is DIRECTION
        assert moved.units is None
        (lower,) = rates.lower(PROBLEM, state, step)
        assert_close(lower, [0.3 * (1 + k) ** -0.5 * factor] * 2, atol=1e-17)
        assert_close(rates.weights(state, jnp.ones(2), step).rate, 0.02 * factor, atol=1e-17)


@pytest.mark.parametrize("missing", ["upper", "lower", "weights"])
def test_given_needs_the_rates_that_the_solver_needs(missing):
    rates = {"upper_rate": 0.1, "lower_rate": 0.1, "weights_rate": 0.1} | {f"{missing}_rate": None}
    solver = bl.MORBiT(rates=bl.rates.Given(**rates))
    with pytest.raises(
        ValueError, match=re.escape(f"Given({missing}_rate=None): MORBiT was not given this rate either")
    ):
        solver.check(PROBLEM)
    own = {"weighting": bl.weightings.SimplexAscent(0.1)} if missing == "weights" else {f"{missing}_lr": 0.1}
    solver.replace(**own).check(PROBLEM)


@pytest.mark.parametrize(
    ("rates", "kind", "said"),
    [
        (bl.rates.Given(-0.1, 0.1, 0.1), ValueError, "Given(upper_rate=-0.1): it needs a positive number"),
        (bl.rates.Given(0.1, "fast", 0.1), ValueError, "Given(lower_rate='fast'): it needs a positive number"),
        (bl.rates.Given(0.1, 0.1, 0.1, shape=0.5), TypeError, "Given(shape=...) got 0.5: it needs a function"),
    ],
)
def test_given_rates_that_make_no_sense(rates, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        bl.SOBA(rates=rates).check(PROBLEM)


# ------------------------------------------------------------------ relative


def test_relative_upper_rate_and_units():
    """alpha = min(0.03, 1.5 / sqrt(K)) (1 - t), in units of a leaf's root mean square or a quarter of its largest."""
    state = with_horizon(RelativeState(first_sizes(X), None))
    for horizon, most in ((K, 0.03), (10_000, 0.015)):
        at = state._replace(horizon=jnp.array(float(horizon)))
        for k in (0, horizon // 4, horizon - 1):
            rate = bl.rates.Relative().upper(at, X, DIRECTION, jnp.array(k)).rate
            assert_close(rate, most * (1 - k / horizon), rtol=1e-12)
    beyond = bl.rates.Relative().upper(state, X, DIRECTION, jnp.array(K + 50))
    assert_close(beyond.rate, 0.03 / K)  # as in the last step
    assert beyond.direction is DIRECTION
    units = {"w": np.sqrt(12.5), "b": 0.5}
    for factor, expected in ((1.0, 1.0), (2.0, 2.0), (0.6, 0.6), (0.3, 0.5), (0.0, 0.5)):
        grown = jax.tree.map(lambda a, f=factor: f * a, X)
        moved = bl.rates.Relative().upper(state, grown, DIRECTION, jnp.array(0))
        for leaf, unit in units.items():
            # 2 is the largest seen: from there on nothing falls below a half.
            assert_close(moved.units[leaf], unit * expected)
        state = moved.state


def test_sizes_of_leaves_that_start_at_zero():
    whole = np.sqrt(25 / 3)
    sizes = first_sizes({"w": X["w"], "b": jnp.array(0.0)})
    assert_close([sizes["w"], sizes["b"]], [np.sqrt(12.5), whole])
    assert_close(jax.tree.leaves(first_sizes(jax.tree.map(jnp.zeros_like, X))), [1.0, 1.0])


def test_relative_lower_rates():
    """min(1, 2 (1 - t)) / L_i."""
    state = with_horizon(None, [4.0, 0.5])
    for k, factor in ((0, 1), (50, 1), (75, 0.5), (99, 0.02), (150, 0.02)):
        (rates,) = bl.rates.Relative().lower(PROBLEM, state, jnp.array(k))
        assert_close(rates, [factor / 4, factor / 0.5])


def test_relative_weights_rate():
    """0.02 (1 - t) / worst, the worst |loss| being followed from its first value at a tenth a step."""
    state, worst = with_horizon(RelativeState(None, jnp.array(0.0))), None
    for k, losses in enumerate(([1.0, -5.0], [2.0, 1.0], [7.0, 0.0])):
        new = np.abs(losses).max()
        worst = new if worst is None else 0.9 * worst + 0.1 * new
        rate, state = bl.rates.Relative().weights(state, jnp.array(losses), jnp.array(k))
        assert_close(rate, 0.02 * (1 - k / K) / worst)
    zero = with_horizon(RelativeState(None, jnp.array(0.0)))
    assert_close(bl.rates.Relative().weights(zero, jnp.zeros(2), jnp.array(0)).rate, 0.02)


# ------------------------------------------------------------------ in a solver


@functools.partial(jax.jit, static_argnums=2, compiler_options={"xla_backend_optimization_level": 0})
def run(solver, problem, steps, x):
    """The states and infos of all steps, after one another."""
    key = jax.random.key(0)
    first = solver.start(problem, x, lower_points(problem, None, key), key, K)

    def one(state, k):
        state, info = solver.step(problem, state, jax.random.fold_in(key, k))
        return state, (state.x, info)

    state, (x, info) = jax.lax.scan(one, first, jnp.arange(steps))
    return state, x, info


def go(solver, steps=3):
    solver.check(PROBLEM)
    return run(solver, PROBLEM, steps, START)


T = np.arange(3) / K
AVERAGING = ("MASOBA", "MORMASOBA")  # rates that are chosen for them are theta times as large: an average lags
BILEVEL = [name for name in bl.solvers.__all__ if hasattr(getattr(bl, name), "rates")]


@pytest.mark.parametrize("name", BILEVEL)
def test_every_bilevel_solver_takes_given_rates(name):
    solver = getattr(bl, name)(rates=bl.rates.Given(0.01, 0.1, 0.02, bl.rates.linear))
    state, x, info = go(solver)
    assert np.all(np.isfinite(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((state.x, state.y, info))])))
    assert x[-1] != START
    assert_close(info.upper_rate, 0.01 * (1 - T), rtol=1e-12)
    assert_close(info.lower_rate, np.outer(0.1 * (1 - T), [1, 1]), rtol=1e-12)
    assert_close(info.weights_rate, 0.02 * (1 - T) * solver.weighting.moves, rtol=1e-12)


@pytest.mark.parametrize("name", BILEVEL)
def test_every_bilevel_solver_takes_relative_rates(name):
    along_gradients = {"lower": bl.lower.Gradient()} if name == "Tandem" else {}
    solver = getattr(bl, name)(rates=bl.rates.Relative(), **along_gradients)
    state, x, info = go(solver)
    assert np.all(np.isfinite(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((state.x, state.y, info))])))
    most = 0.03 * (solver.momentum if name in AVERAGING else 1)
    assert_close(info.upper_rate, most * (1 - T), rtol=1e-12)
    assert_close(info.lower_rate, np.outer([1, 1, 1], [1, 1 / 2]), rtol=1e-6)  # 1 / L_i
    # Adam's first step has length 1, so that x moves by a share of its size; of that, damped solvers go a part.
    assert abs(x[0] - START) == pytest.approx(most * getattr(solver, "damping", 1) * float(START), rel=1e-5)


def test_what_the_solver_was_given_wins():
    rates = bl.rates.Given(0.01, 0.1, 0.02)
    solver = bl.MORBiT(0.05, Power(0.2, -1.0), weighting=bl.weightings.SimplexAscent(0.03), rates=rates)
    _, _, info = go(solver)
    assert_close(info.upper_rate, [0.05] * 3)
    assert_close(info.lower_rate[:, 0], 0.2 / np.array([1, 2, 3]))
    assert_close(info.weights_rate, [0.03] * 3)


def test_the_rule_of_x_is_that_of_the_rates_unless_it_was_given():
    assert bl.SOBA(rates=bl.rates.Relative()).rule_of_x is optax.adam
    assert bl.SOBA(rates=bl.rates.Given(0.1, 0.1)).rule_of_x is optax.sgd
    assert bl.SOBA().rule_of_x is optax.sgd
    assert bl.SOBA(rates=bl.rates.Relative(), upper_rule=optax.lion).rule_of_x is optax.lion


def test_other_given_rates_do_not_compile_again():
    before = None
    for upper_rate in (0.01, 0.02):
        go(bl.SOBA(rates=bl.rates.Given(upper_rate, 0.1, 0.02, bl.rates.linear)))
        assert before in (None, run._cache_size())
        before = run._cache_size()
