"""Losses that are low on the rows that x was fitted to only."""

import numpy as np
import pytest

import bilevel as bl
import made_runs
from bilevel.results.findings.overfitting import _beyond_noise, risen_since
from bilevel.weightings import Average
from made_runs import kinds

T = np.linspace(0, 1, 51)
SEEN = np.stack([1.05 - T + 0.01 * i for i in range(8)], axis=1)


def made(*losses, **roles):
    return made_runs.made(*losses, solver=bl.MORBiT(weighting=Average()), **roles)


def turning(turn):
    """Losses that fall up to an evaluation and rise after it."""
    return np.stack([0.5 + 0.01 * i + np.abs(T - T[turn]) for i in range(8)], axis=1)


@pytest.mark.parametrize("turn", [5, 12, 30])
@pytest.mark.parametrize("role", ["selection", "test"])
def test_the_step_at_which_it_began(turn, role):
    result = made(SEEN, **{role: turning(turn)})
    (found,) = result.findings
    assert found.kind == result.verdict == "overfitting"
    assert abs(found.numbers["began at step"] - 10 * turn) <= 10  # a minimum is the middle of three evaluations
    assert found.numbers[role] == pytest.approx(turning(turn)[-1].max())
    assert found.numbers["task"] == "task 7"
    if role == "selection":
        assert found.numbers["best"] == pytest.approx(turning(turn)[turn].max())
        assert "take result.best" in str(found).lower()
    else:
        assert found.numbers["worst test task"] == "task 7"
        assert "bl.split" in str(found)


def test_where_weights_move_min_avg_is_what_to_compare_with():
    moving = np.stack([0.1 + 0.01 * T, *[(0.9 - 0.01 * T) / 7] * 7], axis=1)
    assert "bl.weightings.Average()" in str(made(SEEN, moving, test=turning(9)).findings[0])
    assert "bl.weightings.Average()" not in str(made(SEEN, test=turning(9)).findings[0])


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_a_loss_that_stays_far_above_without_rising(scale):
    """Eight tasks of eight are worse on other rows, which has a chance of 1 / 256."""
    far = np.maximum(SEEN, 0.6 + 0.01 * np.arange(8))
    assert kinds(made(scale * SEEN, selection=scale * far)) == ["overfitting"]


@pytest.mark.parametrize(("better", "beyond"), [((), True), ((1,), True), ((3,), False), ((1, 2, 3), False)])
def test_chance_is_that_of_signed_ranks(better, beyond):
    """Of 256 ways to sign the ranks 1 to 8, one has none below 0, two a sum of at most 1 there, five of at most 3."""
    gaps = np.array([-k if k in better else k for k in range(1, 9)], float)
    assert _beyond_noise(np.full(8, 10.0), 10 + gaps, (None, None)) == beyond


def test_as_many_better_as_worse_is_chance():
    signs = np.where(np.arange(8) % 2, 1, -1)
    other = SEEN + 0.04 * signs * (T > 0)[:, None]
    assert other[-1].max() > 1.2 * SEEN[-1].max()
    assert "overfitting" not in kinds(made(SEEN, test=other))


def test_the_same_losses_on_all_rows_are_fine():
    assert "overfitting" not in kinds(made(SEEN, selection=SEEN, test=SEEN))


def test_rows_that_x_was_not_fitted_to_say_nothing():
    assert "overfitting" not in kinds(made(SEEN, fits=False, test=turning(5)))


def test_both_losses_rising_is_no_overfitting():
    rising = 1 + np.abs(T - 0.3)
    assert risen_since(rising, rising) is None
    assert risen_since(2 - T, rising) is not None


def test_permuting_tasks_changes_the_name_alone():
    order = np.random.default_rng(0).permutation(8)
    (one,), (other,) = (made(SEEN, test=turning(9)).findings, made(SEEN[:, order], test=turning(9)[:, order]).findings)
    assert other.numbers["task"] == f"task {int(np.flatnonzero(order == 7)[0])}"
    assert {**one.numbers, "task": 0, "worst test task": 0} == {**other.numbers, "task": 0, "worst test task": 0}
