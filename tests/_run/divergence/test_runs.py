"""Runs that go back: the same however they are evaluated, cut into calls, taken up again, or run with others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import driver, recording
from bilevel._run.divergence import Diverged, Raise, SmallerRates, Stop
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from diverging import CALM, PROBLEM, SMALLER, STEPS, WEIGHTING, lower, same, solve, too_large, upper

# ------------------------------------------------------------------ what must not matter


def test_it_goes_back_to_its_best_evaluation():
    solver = CALM["SABA"][1].replace(lower_lr=0.72)  # grows slowly: there are points to go back to
    result = solve(PROBLEM, solver, SMALLER, every=1)
    first = result.divergences[0]
    assert 0 < first.back_to < first.step


def test_it_does_not_matter_how_a_run_is_cut_into_calls(monkeypatch):
    solver = too_large(CALM["MORBiT"][1])
    whole = solve(PROBLEM, solver, SMALLER)
    monkeypatch.setattr(driver, "CALL_SECONDS", 1e-9)  # one step a call
    cut = solve(PROBLEM, solver, SMALLER)
    assert cut.divergences == whole.divergences
    same(cut, whole)


def test_what_a_run_has_reached_says_how_it_goes_on():
    """`RunState` is all: put into a new driver at any time, before and after it diverged, the run ends the same."""
    run = Run(PROBLEM, too_large(CALM["MORBiT"][1]), jnp.array(0.5), jnp.array(0.0), 0, STEPS, on_divergence=SMALLER)
    clock = driver.Clock()
    lanes, seen = [recording.begin(run)], []
    while lanes[0].running and lanes[0].step < run.steps:
        seen.append(lanes[0])
        lanes = driver.advance([run], lanes, clock)
    again = Run(run.problem, run.solver, run.x, run.y, 0, STEPS, on_divergence=SmallerRates())
    assert any(lane.divergences for lane in seen)
    for lane in seen[:: max(1, len(seen) // 5)]:
        others = [lane]
        while others[0].running and others[0].step < run.steps:
            others = driver.advance([again], others, clock)
        assert others[0].divergences == lanes[0].divergences
        jax.tree.map(np.testing.assert_array_equal, others[0].carry, lanes[0].carry)


# ------------------------------------------------------------------ several seeds


NOISY = bl.Problem(
    upper,
    lower,
    [
        bl.Task(jnp.array([1.0, 1.2, 0.8]), jnp.array([1.0, 1.5, 0.5]), name="flat"),
        bl.Task(jnp.array([3.0, 3.6, 2.4]), jnp.array([-1.0, -1.5, -0.5]), name="steep"),
    ],
    lower_batch=1,
    upper_batch=1,
)
EDGE = bl.MORBiT(0.05, 0.68, weighting=WEIGHTING)  # near the rate at which "steep" diverges: seeds differ


def described(seeds, policy, solver=EDGE, steps=STEPS):
    x, y = jnp.array(0.5), jnp.array(0.0)
    return [Run(NOISY, solver, x, y, seed, steps, on_divergence=policy) for seed in seeds]


@pytest.mark.parametrize("policy", [Stop(), SMALLER], ids=["stop", "smaller rates"])
def test_runs_of_a_batch_diverge_each_on_its_own(policy):
    solver = EDGE.replace(lower_lr=2.0)
    batch = driver.run_lanes(described(range(3), policy, solver), Quiet().split(3))
    alone = [driver.run_one(run, Quiet()) for run in described(range(3), policy, solver)]
    for one, other in zip(batch, alone, strict=True):
        assert one.status == other.status
        assert [e[:3] for e in one.divergences] == [e[:3] for e in other.divergences]
        assert [e.back_to for e in one.divergences] == [e.back_to for e in other.divergences]
        assert list(one.history.step) == list(other.history.step)
        np.testing.assert_allclose(one.x, other.x, rtol=1e-6)
    assert all(result.divergences for result in batch)


def test_a_lane_that_went_back_leaves_the_others_as_they_are():
    """One of three diverges; the other two are what they are where none does."""
    runs = described(range(3), SMALLER, EDGE.replace(lower_lr=0.2))
    calm = driver.run_lanes(runs, Quiet().split(3))
    lanes = [recording.begin(run) for run in runs]
    state = lanes[1].carry.state
    lanes[1] = lanes[1]._replace(carry=lanes[1].carry._replace(state=state._replace(x=state.x * jnp.inf)))
    clock = driver.Clock()
    while any(lane.running and lane.step < STEPS for lane in lanes):
        lanes = driver.advance(runs, lanes, clock)
        lanes = [lane.ended("finished") if lane.running and lane.step == STEPS else lane for lane in lanes]
    assert [len(lane.divergences) for lane in lanes] == [0, 1, 0]
    for i in (0, 2):
        np.testing.assert_array_equal(lanes[i].carry.state.x, calm[i].x)
    assert np.isfinite(lanes[1].carry.state.x)


def test_raise_holds_the_results_of_all_seeds():
    with pytest.raises(Diverged, match=r"3 of 3 runs diverged \(seeds 4, 5, 6\)") as caught:
        solve(NOISY, EDGE.replace(lower_lr=2.0), Raise(), seeds=[4, 5, 6])
    assert [result.seed for result in caught.value.results] == [4, 5, 6]
    assert caught.value.result is caught.value.results[0]
    assert [result.status for result in caught.value.results] == ["diverged"] * 3


def test_seeds_at_once_go_on_as_they_do_alone():
    solver = EDGE.replace(lower_lr=2.0)
    together = solve(NOISY, solver, SMALLER, seeds=2)
    for result in together:
        alone = solve(NOISY, solver, SMALLER, seed=result.seed)
        assert alone.divergences == result.divergences
        same(alone, result)
