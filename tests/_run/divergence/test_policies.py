"""Every policy, on problems made to diverge: rates too large, a schedule that jumps, a loss that breaks."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run.divergence import Diverged, Raise, SmallerRates, Stop
from bilevel.weightings import SimplexAscent
from diverging import (
    CALM,
    PROBLEM,
    ROBUST,
    SMALLER,
    STEPS,
    TASKS,
    WEIGHTING,
    diverge,
    jumps,
    loss,
    lower,
    same,
    solve,
    too_large,
    upper,
)


@pytest.fixture(params=CALM)
def calm(request):
    """A problem, and a solver that converges on it."""
    return CALM[request.param]


def test_a_run_that_does_not_diverge_is_the_same_under_every_policy(calm):
    results = [solve(*calm, policy) for policy in (Stop(), Raise(), SMALLER)]
    assert [(result.status, result.divergences) for result in results] == [("finished", ())] * 3
    same(results[0], results[1])
    same(results[0], results[2])


def test_rates_that_are_too_large_are_made_smaller_until_they_are_not(calm):
    problem, solver = calm
    result = solve(problem, too_large(solver), SMALLER)
    assert result.status == "finished"
    assert result.steps == STEPS
    assert 1 <= len(result.divergences) <= 5
    assert {event.factor for event in result.divergences} == {0.5}
    end = solve(problem, solver, Stop()).worst
    assert abs(result.worst - end) < 0.05
    assert abs(result.average.worst - end) < 0.2  # nothing of what was far off is left in it


def test_what_it_went_on_with_is_a_run_at_the_smaller_rates():
    """At 3 the distance of the steep task's y grows eightfold in a step, so that it starts again; 3/8 is fine."""
    solver = CALM["MORBiT"][1].replace(lower_lr=3.0)
    result = solve(PROBLEM, solver, SmallerRates(1 / 8))
    assert [(event.factor, event.back_to) for event in result.divergences] == [(1 / 8, 0)]
    smaller = bl.MORBiT(0.1 / 8, 3.0 / 8, weighting=SimplexAscent(0.02 / 8))
    same(result, solve(PROBLEM, smaller, Stop()))


def test_stop_and_raise_end_with_the_same_state(calm):
    problem, solver = calm
    stopped = diverge(problem, too_large(solver), Stop())
    with pytest.raises(Diverged, match=r"diverged: at step \d+ ") as caught:
        solve(problem, too_large(solver), Raise())
    raised = caught.value.result
    assert str(caught.value) == stopped.message == raised.message
    assert raised.status == "diverged"
    assert raised.divergences == stopped.divergences
    same(stopped, raised)


def test_the_record_says_what_the_message_says(calm):
    problem, solver = calm
    result = diverge(problem, too_large(solver), Stop())
    [event] = result.divergences
    assert (event.step, event.message) == (result.steps, result.message)
    assert (event.factor, event.back_to) == (None, None)
    if event.task is not None:
        assert f"of task {event.task!r} became" in event.message
    assert event.task in (None, "flat", "steep")
    assert event.quantity in ("loss", "y", "x", "direction")


# ------------------------------------------------------------------ a schedule that jumps


def test_a_schedule_that_jumps_is_tried_again_from_the_best_point_before_it(calm):
    problem, solver = calm
    result = diverge(problem, jumps(solver), SmallerRates(0.1, tries=2), every=10)
    # No factor of 0.1 makes a rate of 1e30 harmless, but it need not start again either.
    assert [event.back_to in (20, 30) for event in result.divergences] == [True, True, False]
    assert all(event.step > 32 for event in result.divergences)
    assert list(result.history.step) == sorted(set(result.history.step))


def test_a_small_jump_is_survived():
    rate = lambda step: jnp.where((step >= 20) & (step < 220), 20.0, 0.1)  # noqa: E731
    result = solve(ROBUST, bl.GDA(rate, WEIGHTING), SmallerRates(0.05), every=16)
    assert result.status == "finished"
    assert [event.back_to for event in result.divergences] == [16]
    assert abs(result.worst - 0.5) < 0.05


# ------------------------------------------------------------------ a loss that breaks


def hole(f):
    """The same loss, NaN where x is below 0.25: descent goes there, at any rate."""

    def broken(x, *rest):
        return jnp.where(x < 0.25, jnp.nan, f(x, *rest))

    return broken


def test_where_smaller_rates_cannot_help_it_ends_by_itself(calm):
    problem, solver = calm
    if isinstance(problem, bl.MinMaxProblem):
        problem = bl.MinMaxProblem(hole(loss), [bl.Task(t.validation, t.validation, name=t.name) for t in TASKS])
    else:
        problem = bl.Problem(hole(upper), lower, TASKS)
    steps = 20_000
    result = diverge(problem, solver, SmallerRates(tries=3), steps=steps)
    assert [event.factor for event in result.divergences] == [0.5, 0.5, 0.5, None]
    assert "gone back 3 times, with rates down to 0.125 of the first" in result.message
    assert result.steps < steps
    assert np.isfinite(result.x)
    assert np.isfinite(result.best.worst)
    # Each time it goes on from a finite point, and at half the rate it takes as many steps again.
    ends = [event.step for event in result.divergences]
    assert ends == sorted(ends)
    assert all(event.back_to <= event.step for event in result.divergences[:-1])


# ------------------------------------------------------------------ what is told and kept


def test_it_is_in_the_summary_and_in_the_file(tmp_path):
    result = solve(PROBLEM, too_large(CALM["MORBiT"][1]), SMALLER, every=STEPS)
    first = result.divergences[0]
    line = f"diverged at step {first.step} (loss of task 'steep'): continued from step 0 with rates times 0.5"
    assert line in result.summary()
    result.save(tmp_path / "kept")
    again = bl.load(tmp_path / "kept")
    assert again.divergences == result.divergences
    assert isinstance(again.divergences[0], bl.divergence.Divergence)
    assert again.summary() == result.summary()


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        (SmallerRates(1.0), ValueError, r"SmallerRates\(factor=1.0\): it needs a number between 0 and 1"),
        (SmallerRates(tries=0), ValueError, r"SmallerRates\(tries=0\): it needs a whole number, 1 or more"),
        ("stop", TypeError, r"solve\(on_divergence=...\) got 'stop': it needs a policy object"),
        (Stop, TypeError, r"solve\(on_divergence=...\) got .*Stop.*: it needs a policy object"),
    ],
)
def test_what_makes_no_sense_is_refused(policy, error, words):
    with pytest.raises(error, match=words):
        solve(*CALM["MORBiT"], policy)
