"""`check_result`: the findings of a result, and whether y lags behind x."""

import pytest

import bilevel as bl
from bilevel.hypergradients import Exact
from bilevel.weightings import SimplexAscent

BALL = bl.problems.enclosing_ball()


def run(solver, steps):
    return bl.solve(BALL.problem, solver, BALL.x, steps=steps, progress=False)


def test_a_lower_level_that_lags():
    result = run(bl.MORBiT(0.05, 1e-4, Exact(), SimplexAscent(0.01)), 500)
    assert not any("lags" in sentence for sentence in result.findings())
    *cheap, lag = bl.check_result(result)
    assert cheap == result.findings()
    assert "lags" in lag
    assert "lower_lr" in lag


def test_a_lower_level_that_is_solved_is_not_reported():
    assert bl.check_result(run(bl.MORBiT(0.05, 0.4, Exact(), SimplexAscent(0.01)), 500)) == []


def test_the_findings_of_the_result_come_first():
    """A weight rate far above what the lag of y allows: a limit cycle."""
    result = run(bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.5)), 1500)
    assert result.findings()
    assert bl.check_result(result)[: len(result.findings())] == result.findings()


def test_a_loaded_result_has_the_findings_that_were_saved(tmp_path):
    result = run(bl.MORBiT(0.05, 1e-4, Exact(), SimplexAscent(0.01)), 500)
    result.save(tmp_path / "r")
    assert bl.check_result(bl.load(tmp_path / "r")) == result.findings()


@pytest.mark.parametrize("given", [None, BALL.problem, []], ids=["None", "problem", "list"])
def test_what_is_no_result(given):
    with pytest.raises(TypeError, match=r"check_result\(result=...\) got \w+: it needs one bl\.Result\."):
        bl.check_result(given)
