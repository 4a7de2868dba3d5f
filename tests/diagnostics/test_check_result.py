"""`check_result`: the findings of a result, and whether y lags behind x."""

import pytest

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.weightings import SimplexAscent

SLOW = bl.MORBiT(0.05, 1e-4, Exact(), SimplexAscent(0.01))


@pytest.fixture(scope="module")
def run(padded_ball):
    ball = padded_ball()
    return lambda solver, steps: bl.solve(ball.problem, solver, ball.x, steps=steps, progress=False)


@pytest.fixture(scope="module")
def lagging(run):
    return run(SLOW, 500)


def test_a_lower_level_that_lags(lagging):
    assert not any("lags" in sentence for sentence in lagging.findings())
    *cheap, lag = bl.check_result(lagging)
    assert cheap == lagging.findings()
    assert "lags" in lag
    assert "lower_lr" in lag


def test_a_lower_level_that_is_solved_is_not_reported(run):
    assert bl.check_result(run(SLOW.replace(lower_lr=0.4), 500)) == []


def test_the_findings_of_the_result_come_first(run):
    """A weight rate far above what the lag of y allows: a limit cycle."""
    result = run(bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.5)), 1500)
    assert result.findings()
    assert bl.check_result(result)[: len(result.findings())] == result.findings()


def test_a_loaded_result_has_the_findings_that_were_saved(lagging, tmp_path):
    lagging.save(tmp_path / "r")
    assert bl.check_result(bl.load(tmp_path / "r")) == lagging.findings()


@pytest.mark.parametrize("given", [None, bl.problems.shrinkage().problem, []], ids=["None", "problem", "list"])
def test_what_is_no_result(given):
    with pytest.raises(TypeError, match=r"check_result\(result=...\) got \w+: it needs one bl\.Result\."):
        bl.check_result(given)
