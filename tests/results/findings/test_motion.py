"""What does not move."""

import numpy as np
import pytest

import bilevel as bl
from bilevel.hypergradients import Direct, Exact
from bilevel.weightings import Average
from made_runs import kinds, made

AVERAGE = bl.MORBiT(weighting=Average())
FALLING = 1 + np.exp(-30 * np.linspace(0, 1, 51))


def test_all_losses_constant():
    result = made(np.tile([1.0, 2.0], (51, 1)), solver=AVERAGE)
    assert (kinds(result), result.verdict) == (["constant losses"], "nothing moved")


def test_one_task_constant():
    result = made(np.stack([FALLING, np.full(51, 0.7)], axis=1), solver=AVERAGE)
    (found,) = result.findings
    assert (found.kind, found.numbers) == ("constant task", {"tasks": 1, "task": "task 1"})
    assert result.verdict == "settled"


def test_the_smallest_change_is_one():
    assert kinds(made(np.stack([FALLING, np.linspace(0.7, 0.7001, 51)], axis=1), solver=AVERAGE)) == []


def test_no_direction():
    losses = np.stack([FALLING, FALLING], axis=1)
    assert kinds(made(losses, norms=np.zeros(51), solver=AVERAGE)) == ["x does not move"]


@pytest.mark.parametrize(("rate", "found"), [(1e-9, ["x does not move"]), (1e-2, [])])
def test_steps_that_bring_nothing(rate, found):
    """A direction of length 1 over 500 steps: to first order they bring 500 rates of a loss of 1."""
    solver = AVERAGE.replace(upper_lr=rate)
    result = made(np.stack([FALLING, FALLING], axis=1), rates=np.full(51, rate), norms=np.ones(51), solver=solver)
    assert kinds(result) == found
    if found:
        assert result.findings[0].numbers["gain"] == pytest.approx(500 * rate)


def test_where_the_direction_vanishes_x_need_not_move():
    norms = np.full(51, 1e-9)
    solver = AVERAGE.replace(upper_lr=1e-9)
    losses = np.stack([FALLING, FALLING], axis=1)
    assert kinds(made(losses, rates=np.full(51, 1e-9), norms=norms, solver=solver)) == []


def test_direct_sees_nothing_where_f_has_no_x_of_its_own(padded_ball):
    """The ball's f depends on x through y alone: the estimate is 0, and the finding says why."""
    ball = padded_ball()
    solver = bl.MORBiT(0.1, 0.4, Direct(), bl.weightings.SimplexAscent(0.02))
    result = bl.solve(ball.problem, solver, ball.x, steps=100, progress=False)
    assert np.array_equal(result.x, ball.x)
    assert "x does not move" in kinds(result)
    moving = bl.solve(ball.problem, solver.replace(hypergradient=Exact()), ball.x, steps=100, progress=False)
    assert "x does not move" not in kinds(moving)
