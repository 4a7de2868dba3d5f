"""`check_result`: the findings of a result, and whether y lags behind x."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.diagnostics.checks import _settled
from bilevel.diagnostics.points import weighted_gradient
from bilevel.hypergradients import Exact
from bilevel.weightings import SimplexAscent

SLOW = bl.MORBiT(0.05, 1e-4, Exact(), SimplexAscent(0.01))


@pytest.fixture(scope="module")
def run(padded_ball):
    ball = padded_ball()
    options = {"progress": False, "fitted": False}  # a fitted y does not lag
    return lambda solver, steps: bl.solve(ball.problem, solver, ball.x, steps=steps, **options)


@pytest.fixture(scope="module")
def lagging(run):
    return run(SLOW, 500)


def test_a_lower_level_that_lags(lagging):
    *cheap, lag = bl.check_result(lagging)
    assert tuple(cheap) == lagging.findings
    assert lag.kind == "lower level lags"
    assert "a larger lower_lr" in str(lag)
    assert lag.numbers["share of largest rate"] < 0.01


def test_a_lower_level_that_is_solved_is_not_reported(run):
    assert bl.check_result(run(SLOW.replace(lower_lr=0.4), 500)) == ()


def test_a_lag_is_measured_on_all_rows(padded_ball):
    """Batches of 4 of 256 rows, and y where all rows have it: there it stays, and fitted to a few rows it would not."""
    ball = padded_ball(ball=bl.problems.noisy_ball(rows=256, noise=3.0))
    start, uniform = ball.problem.starting_y(None, jax.random.key(0)), jnp.full(4, 0.25)
    solved = weighted_gradient(ball.problem, ball.x, start, uniform)[0]
    losses, _ = _settled(ball.problem, ball.x, solved.y, jax.random.key(0))
    np.testing.assert_allclose(losses, solved.losses, rtol=1e-6)


def test_the_findings_of_the_result_come_first(run):
    """A weight rate far above what the lag of y allows: a limit cycle."""
    result = run(bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.5)), 1500)
    assert result.findings
    assert bl.check_result(result)[: len(result.findings)] == result.findings


def test_a_loaded_result_has_the_findings_that_were_saved(lagging, tmp_path):
    lagging.save(tmp_path / "r")
    assert bl.check_result(bl.load(tmp_path / "r")) == lagging.findings


@pytest.mark.parametrize("given", [None, bl.problems.shrinkage().problem, []], ids=["None", "problem", "list"])
def test_what_is_no_result(given):
    with pytest.raises(TypeError, match=r"check_result\(result=...\) got \w+: it needs one bl\.Result\."):
        bl.check_result(given)
