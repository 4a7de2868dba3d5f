"""Each finding is reported on a run made to show it, and on no healthy run."""

import jax
import pytest

import bilevel as bl
from bilevel.hypergradients import Exact, Tracked
from bilevel.weightings import Exponentiated, SimplexAscent


def run(known, solver, steps=1500, seed=0):
    return bl.solve(known.problem, solver, known.x, steps=steps, seed=seed, progress=False)


@pytest.fixture(scope="module")
def cycling(padded_ball):
    """A rate of the weights far above what the lag of y allows: a limit cycle."""
    return run(padded_ball(), bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.5)))


def test_cycling_weights(cycling):
    assert any("cycle" in str(found) and "smaller lr" in str(found) for found in cycling.findings)


def test_they_are_part_of_the_summary(cycling):
    assert "cycle" in cycling.summary()


def test_collapsed_weights():
    """Multiplicative weights that have fallen far take long to come back: meanwhile the other task gets worse."""
    known = bl.problems.opposed_slopes()
    result = run(known, bl.MORBiT(1e-3, 0.4, Exact(), Exponentiated(lr=10.0)), steps=600)
    assert any("collapsed on task 'task 1' while 'task 0'" in str(f) and "floor" in str(f) for f in result.findings)


def test_all_weight_on_the_worst_task_is_no_collapse():
    known = bl.problems.opposed_slopes()
    result = run(known, bl.MORBiT(1e-6, 0.4, Exact(), Exponentiated(lr=10.0)), steps=600)
    assert result.weights.max() > 0.99
    assert not any(found.kind == "collapsed weights" for found in result.findings)


def test_noisy_end(padded_ball):
    known = padded_ball(ball=bl.problems.noisy_ball(seed=1))
    result = run(known, bl.MORBiT(0.2, 0.4, Tracked(0.4), SimplexAscent(0.02)), seed=1)
    assert result.last.worst > 1.1 * result.average.worst
    assert any("take result.average" in str(found) for found in result.findings)


@pytest.mark.parametrize("seed", range(10))
def test_healthy_runs_have_none(seed):
    result = run(bl.problems.random_quadratics(seed), bl.MORBiT(), steps=5000, seed=seed)
    assert bl.check_result(result) == ()
    assert result.verdict == "settled"


def test_printing_a_result_compiles_nothing(padded_ball):
    """Not even what an earlier test has compiled: the caches are empty."""
    result = run(padded_ball(), bl.MORBiT(0.05, 1e-4, Exact(), SimplexAscent(0.01)), steps=30)
    jax.clear_caches()
    events = []
    listener = lambda event, duration, **_: events.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        assert str(result).startswith("MORBiT (SimplexAscent): finished after 30 steps")
        assert isinstance(result.findings, tuple)
        printing = list(events)
        bl.check_result(result)  # which must compute: so the listener sees compilations
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert printing == []
    assert any("compile" in event for event in events)
