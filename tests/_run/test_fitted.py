"""What is called a loss is that of x: y is fitted to it where it is measured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run.run import Run
from bilevel.diagnostics.points import solve_lower


def upper(x, y, batch):
    return jnp.mean((y[None] - batch) ** 2)


def lower(x, y, batch):
    # Of condition 1e3: one gradient step a step leaves y far behind x.
    return jnp.sum(jnp.array([1.0, 1e-3]) * (y - x) ** 2) + 0.0 * jnp.sum(batch)


PROBLEM = bl.Problem(
    upper, lower, [bl.Task(jnp.zeros(3), jnp.full((4, 2), 3.0)), bl.Task(jnp.zeros(3), jnp.ones((4, 2)))]
)
SOLVER = bl.MORBiT(0.2, 0.4, bl.hypergradients.Exact(), bl.weightings.SimplexAscent(0.01))


def go(every=10, **options):
    return bl.solve(PROBLEM, SOLVER, jnp.zeros(2), jnp.zeros(2), steps=100, every=every, progress=False, **options)


def true_worst(x):
    y = PROBLEM.starting_y(jnp.zeros(2), jax.random.key(0))
    return float(np.max(solve_lower(PROBLEM, jnp.asarray(x), y).losses))


def test_reported_losses_are_those_of_x():
    seen = []
    result = go(callback=lambda row: seen.append(row["x"]) and None)
    np.testing.assert_allclose(result.history.worst[1:], [true_worst(x) for x in seen], rtol=1e-6)
    for name in ("last", "best", "average", "random"):
        iterate = getattr(result, name)
        np.testing.assert_allclose(iterate.worst, true_worst(iterate.x), rtol=1e-6)
    assert result.history.fitted.all()
    assert np.all(result.history.lag < 1e-6)


def test_the_best_is_best_by_true_losses():
    seen = []
    result = go(callback=lambda row: seen.append(row["x"]) and None)
    np.testing.assert_allclose(result.best.worst, min(map(true_worst, [np.zeros(2), *seen])), rtol=1e-6)


def test_y_belongs_to_x():
    result = go()
    for y in result.y.values():
        np.testing.assert_allclose(y, result.x, rtol=1e-4)


def test_the_way_of_the_paper_is_an_option():
    fitted, plain = go(), go(fitted=False)
    np.testing.assert_array_equal(fitted.x, plain.x)  # looking changes no run
    assert not plain.history.fitted.any()
    assert abs(plain.worst - true_worst(plain.x)) > 0.1 * plain.worst
    with pytest.raises(TypeError, match="fitted"):
        go(fitted=1)


def test_fits_take_a_share_of_the_run_only(monkeypatch):
    monkeypatch.setattr("bilevel._run.run.NUMBERS_A_SECOND", 0.0)
    result = go(every=2)
    assert 1 < result.history.fitted.sum() < len(result.history.fitted)
    assert result.history.fitted[0]
    assert result.history.fitted[-1]
    assert np.isnan(result.history.lag[~result.history.fitted]).all()


def test_what_a_fit_may_cost_is_counted_in_passes():
    run = Run(PROBLEM, SOLVER, jnp.zeros(2), jnp.zeros(2), 0, 100)
    assert run.affords_fit(0, 0)
    assert not run.affords_fit(100, 10**12)


def test_a_saved_result_keeps_them(tmp_path):
    result = go()
    result.save(tmp_path / "run.safetensors")
    again = bl.load(tmp_path / "run.safetensors")
    np.testing.assert_array_equal(again.history.fitted, result.history.fitted)
    np.testing.assert_array_equal(again.history.lag, result.history.lag)
