"""Runs that end before their time: by divergence, which is said and leaves a finite state, or by Ctrl-C."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import loop
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel._run.recovery import Broken
from bilevel._run.recovery import _advice as advice
from bilevel._run.run import Run

STEPS = 2000


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean(batch * (y - x) ** 2) / 2


# The curvature of g is 1 in "flat" and 3 in "steep": at a rate between 2/3 and 2 only "steep" diverges.
PROBLEM = bl.Problem(
    upper,
    lower,
    [
        bl.Task(jnp.array([1.0]), jnp.array([1.0]), name="flat"),
        bl.Task(jnp.array([3.0]), jnp.array([-1.0]), name="steep"),
    ],
    lower_batch=1,
    upper_batch=1,
)
CALM = bl.MORBiT(upper_lr=0.1, lower_lr=0.2, weighting=bl.weightings.SimplexAscent(lr=0.01))
LOWER = CALM.replace(lower_lr=1.5)
UPPER = CALM.replace(upper_lr=50.0)


def run(solver, steps=STEPS, **options):
    return bl.solve(PROBLEM, solver, jnp.array(0.5), jnp.array(0.0), steps=steps, progress=False, **options)


def diverge(solver, **options):
    with pytest.warns(UserWarning, match="diverged") as caught:
        result = run(solver, **options)
    return result, [str(warning.message) for warning in caught]


@pytest.fixture(scope="module", params=[LOWER, UPPER], ids=["lower", "upper"])
def diverged(request):
    """A solver, its diverged result, and the warnings."""
    return request.param, *diverge(request.param, every=7)


def test_it_is_said_once_with_the_step(diverged):
    _, result, warnings = diverged
    assert result.status == "diverged"
    assert warnings == [result.message]
    assert f"at step {result.steps} " in result.message
    assert "MORBiT diverged" in result.message
    assert "last finite state" in result.message


def test_a_lower_rate_too_large_is_blamed_on_the_task_that_broke():
    result, _ = diverge(LOWER)
    assert re.search(r"loss of task 'steep' became (inf|nan).*smaller lower_lr \(its rate was 1.5\)", result.message)
    assert "upper_lr" not in result.message


def test_an_upper_rate_too_large_is_blamed_on_the_upper_rate():
    result, _ = diverge(UPPER)
    assert re.search(r"smaller upper_lr \(it was 50\)", result.message)
    assert "lower_lr" not in result.message


def test_weights_that_break_are_blamed_on_the_rate_of_the_weighting():
    jump = CALM.replace(weighting=bl.weightings.Exponentiated(lr=lambda step: jnp.where(step == 4, jnp.inf, 0.1)))
    result, _ = diverge(jump)
    assert re.search(r"at step 4 the weights became .*smaller lr of the weighting, or None", result.message)


def blow_up(step):
    """A rate of y that is infinite once."""
    return jnp.where(step == 9, jnp.inf, 0.2)


def test_a_y_that_breaks_is_named_with_its_rate():
    result, _ = diverge(CALM.replace(lower_lr=blow_up))
    assert re.search(r"at step 9 y of task '(flat|steep)' became .*smaller lower_lr, or None", result.message)
    assert "upper_lr" not in result.message


INFO = bl.Info.of(jnp.zeros(2), upper_rate=2.5, lower_rate=jnp.array([5.0, 5.0]))
BY_X = Broken("loss", "the loss became inf", 0, upper=True)
BY_BOTH = BY_X._replace(lower=True)
ADVICE = {
    "given and chosen": (
        bl.MORBiT(lower_lr=5.0),
        BY_X,
        "Try a smaller lower_lr (its rate was 5) or upper_lr (it was 2.5), or None to have the rates chosen, "
        "or a larger batch.",
    ),
    "given and to blame": (
        bl.MORBiT(lower_lr=5.0),
        BY_BOTH,
        "Try a smaller lower_lr (its rate was 5) or upper_lr (it was 2.5), or None to have the rates chosen, "
        "or a larger batch.",
    ),
    "both given": (
        bl.MORBiT(2.5, 5.0),
        BY_X,
        "Try a smaller upper_lr (it was 2.5), or None to have the rates chosen, or a larger batch.",
    ),
    "none given": (
        bl.MORBiT(),
        BY_X,
        "Its rates were chosen. Try on_divergence=bl.divergence.SmallerRates(), or a rate of your own, a smaller "
        "upper_lr (it was 2.5), or a larger batch.",
    ),
    "none can be chosen": (
        bl.GDA(2.5, bl.weightings.SimplexAscent(0.1)),
        BY_X,
        "Try a smaller upper_lr (it was 2.5), or a larger batch.",
    ),
}


@pytest.mark.parametrize(("solver", "broken", "said"), ADVICE.values(), ids=ADVICE)
def test_rates_that_were_given_are_named_before_those_that_were_chosen(solver, broken, said):
    problem = bl.problems.reduced_ball().problem if isinstance(solver, bl.GDA) else PROBLEM
    described = Run(problem, solver, jnp.array(0.5), jnp.array(0.0), 0, STEPS, on_divergence=bl.divergence.Stop())
    said = said if problem.is_stochastic else said.replace(", or a larger batch", "")
    assert advice(described, broken, INFO) == said


def test_without_batches_no_larger_one_is_advised_and_a_better_point_is_told_of():
    problem = bl.Problem(upper, lower, [bl.Task(jnp.array([3.0]), jnp.array([-1.0]), name="only")])
    with pytest.warns(UserWarning, match="diverged"):
        result = bl.solve(problem, LOWER, jnp.array(0.5), jnp.array(0.0), steps=STEPS, progress=False)
    assert "batch" not in result.message
    assert result.message.endswith("The result holds the last finite state; result.best is a better one, from before.")
    assert result.best.worst < result.worst


@bl.part
class Outward(bl.Solver):
    """A solver of a user's own, with what must be there and nothing else: it multiplies x by -1e30."""

    def start(self, problem, x, y, key, steps):
        return bl.State(jnp.zeros((), int), x, y, jnp.full(problem.size, 1 / problem.size))

    def step(self, problem, state, key):
        info = bl.Info.of(jnp.zeros(problem.size), abs(state.x), upper_rate=2.0)
        return state._replace(step=state.step + 1, x=-1e30 * state.x), info


def test_a_solver_without_options_diverges_with_a_message():
    result, _ = diverge(Outward())
    assert result.steps == 10
    assert "Outward diverged: at step 10 x became infinite or NaN. Try a smaller rate of x (it was 2)" in result.message


@pytest.mark.parametrize("seed", range(3))
def test_the_random_iterate_is_drawn_from_all_steps_that_were_finite(seed):
    result, _ = diverge(LOWER, every=STEPS, seed=seed)  # long calls, so that picks fall into the one that breaks
    undisturbed = run(LOWER, steps=result.steps, seed=seed)
    np.testing.assert_array_equal(result.random.x, undisturbed.random.x)
    np.testing.assert_array_equal(result.random.weights, undisturbed.random.weights)
    np.testing.assert_array_equal(list(result.random.y.values()), list(undisturbed.random.y.values()))


def test_the_driver_leaves_warnings_to_solve():
    described = Run(PROBLEM, LOWER, jnp.array(0.5), jnp.array(0.0), 0, STEPS)
    assert run_one(described, Quiet()).status == "diverged"  # warnings are errors here


def test_several_seeds_that_diverge_are_told_of_once():
    with pytest.warns(UserWarning, match=r"3 of 3 runs diverged \(seeds 0, 1, 2\). The first: MORBiT") as caught:
        results = run(LOWER, seeds=3)
    assert len(caught) == 1
    assert [result.status for result in results] == ["diverged"] * 3


def test_the_last_finite_state_is_returned(diverged):
    _, result, _ = diverged
    assert 0 < result.steps < STEPS
    assert np.all(np.isfinite(result.x))
    assert all(np.all(np.isfinite(y)) for y in result.y.values())
    assert np.all(np.isfinite(result.weights))
    np.testing.assert_allclose(result.weights.sum(), 1)


def test_it_is_the_state_of_an_undisturbed_run(diverged):
    solver, result, _ = diverged
    undisturbed = run(solver, steps=result.steps)
    assert undisturbed.status == "finished"
    np.testing.assert_array_equal(result.x, undisturbed.x)
    np.testing.assert_array_equal(result.y["flat"], undisturbed.y["flat"])
    np.testing.assert_array_equal(result.y["steep"], undisturbed.y["steep"])
    np.testing.assert_array_equal(result.weights, undisturbed.weights)


def test_the_step_after_the_last_finite_state_is_not_finite(diverged):
    solver, result, _ = diverged
    with pytest.warns(UserWarning, match=f"at step {result.steps} "):
        assert run(solver, steps=result.steps + 1).steps == result.steps


def test_how_often_a_run_is_looked_at_does_not_change_where_it_ends(diverged):
    solver, result, _ = diverged
    often, _ = diverge(solver, every=STEPS)
    assert (often.steps, often.message) == (result.steps, result.message)
    np.testing.assert_array_equal(often.x, result.x)


def test_history_is_kept(diverged):
    _, result, _ = diverged
    regular = np.arange(0, result.steps + 1, 7)
    np.testing.assert_array_equal(result.history.step[: len(regular)], regular)
    assert result.history.step[-1] == result.steps
    assert np.all(np.isfinite(result.history.validation[:-1]))
    np.testing.assert_array_equal(result.history.weights[-1], result.weights)


def test_best_is_kept(diverged):
    _, result, _ = diverged
    assert result.best.worst == result.history.worst.min() <= result.history.worst[0]
    assert np.isfinite(result.best.x)


def test_the_other_iterates_are_finite(diverged):
    _, result, _ = diverged
    for iterate in (result.random, result.average):
        assert np.isfinite(iterate.x)
        assert np.all(np.isfinite(iterate.weights))
        assert all(np.isfinite(y) for y in iterate.y.values())


def test_a_run_whose_first_step_breaks_returns_the_start():
    # sqrt has no finite slope at 0: the loss there is fine, the direction is not.
    def kinked(x, y, batch):
        return jnp.mean((y - batch) ** 2) / 2 + jnp.sqrt(x**2)

    problem = bl.Problem(kinked, lower, [bl.Task(jnp.array([1.0]), jnp.array([1.0]), name="only")])
    with pytest.warns(
        UserWarning, match=r"at step 0 the direction of x became infinite or NaN.*upper_lr \(it was 0.1\)"
    ):
        result = bl.solve(problem, CALM, jnp.array(0.0), jnp.array(0.0), steps=10, progress=False)
    assert (result.steps, result.status, float(result.x)) == (0, "diverged", 0.0)
    assert list(result.history.step) == [0]


def leap(step):
    """A rate whose tenth value throws x out of the numbers; the losses seen in that step are still fine."""
    return jnp.where(step == 9, jnp.inf, 0.1)


@pytest.mark.parametrize("steps", [STEPS, 10], ids=["a step before the losses break", "in the last step"])
def test_a_state_that_breaks_while_the_losses_are_fine(steps):
    result, _ = diverge(CALM.replace(upper_lr=leap), steps=steps, every=7)
    assert (result.status, result.steps) == ("diverged", 9)
    np.testing.assert_allclose(result.x, run(CALM, steps=9).x, rtol=1e-12)


# ------------------------------------------------------------------ Ctrl-C


def test_ctrl_c_in_a_callback_returns_what_there_is():
    def stop(evaluation):
        if evaluation["step"] == 21:
            raise KeyboardInterrupt

    result = run(CALM, every=7, callback=stop)
    assert (result.status, result.steps) == ("interrupted", 21)
    assert "nterrupted" in result.message
    np.testing.assert_array_equal(result.history.step, [0, 7, 14, 21])
    np.testing.assert_array_equal(result.x, run(CALM, steps=21).x)


def test_ctrl_c_in_a_compiled_call_returns_the_state_before_it(monkeypatch):
    compiled, calls = loop.steps, []

    def interrupted(*arguments, **options):
        calls.append(int(arguments[2].state.step))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return compiled(*arguments, **options)

    monkeypatch.setattr(loop, "steps", interrupted)
    result = run(CALM)
    monkeypatch.undo()
    assert (result.status, result.steps) == ("interrupted", calls[-1])
    assert 0 < result.steps < STEPS
    assert result.history.step[-1] == result.steps
    np.testing.assert_array_equal(result.x, run(CALM, steps=result.steps).x)


def test_ctrl_c_before_the_first_step_returns_the_start(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "steps", interrupted)
    result = run(CALM)
    assert (result.status, result.steps) == ("interrupted", 0)
    assert float(result.x) == 0.5
    np.testing.assert_allclose(list(result.y.values()), 0.5, rtol=1e-9)  # fitted to x
