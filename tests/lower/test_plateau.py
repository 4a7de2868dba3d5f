import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.lower.steps import reduction, update
from ulp import assert_ulp


def scripted(losses, factor=0.1, patience=2, every=3):
    """The rates of a ReduceLROnPlateau that sees means of `every` losses, computed by hand."""
    best, bad, scale, scales = np.inf, 0, 1.0, []
    for step, _ in enumerate(losses, 1):
        if step % every == 0:
            mean = np.mean(losses[step - every : step])
            best, bad = (mean, 0) if mean < best * (1 - 1e-4) else (best, bad + 1)
            if bad == patience:
                scale, bad = scale * factor, 0
        scales.append(scale)
    return np.array(scales)


def test_the_rate_falls_where_the_mean_loss_does_not():
    losses = np.random.default_rng(0).uniform(1, 2, 60)
    rule = bl.rules.Plateau(patience=2, every=3)(0.5)
    state, seen = rule.init(jnp.zeros(2)), []
    for loss in losses:
        updates, state = update(rule, jnp.ones(2), state, jnp.zeros(2), loss)
        seen.append(-float(updates[0]) / 0.5)
        assert float(reduction(state)) == pytest.approx(seen[-1])
    expected = scripted(losses)
    assert expected[-1] < 1
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


@pytest.mark.parametrize("hypergradient", [bl.hypergradients.Unrolled(), bl.hypergradients.Direct()])
def test_both_levels_can_have_plateaus(padded_ball, hypergradient):
    known = padded_ball()
    rule = bl.rules.Plateau(patience=1, every=20)
    solver = bl.MORBiT(0.05, 0.5, hypergradient, bl.weightings.SimplexAscent(0.02))
    watched = solver.replace(upper_rule=rule, lower_rule=rule)
    result = bl.solve(known.problem, watched, known.x, steps=400, progress=False)
    rates = result.history.upper_rate[1:]
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] < 0.04
    assert (result.history.lower_rate[-1] < 0.4).any()
    free = bl.solve(known.problem, solver, known.x, steps=15, progress=False)
    early = bl.solve(known.problem, watched, known.x, steps=15, progress=False)
    assert_ulp(free.x, early.x)  # before the first average it is the rule itself


def test_a_lower_plateau_wants_a_solver_that_knows_its_losses():
    known = bl.problems.enclosing_ball()
    with pytest.raises(ValueError, match=r"SOBA.*lower_rule.*losses"):
        bl.solve(known.problem, bl.SOBA(0.1, 0.1, lower_rule=bl.rules.Plateau()), known.x, steps=5, progress=False)


@pytest.mark.parametrize("option", [{"patience": 0}, {"every": 1.5}, {"factor": 1.0}, {"rtol": 0}])
def test_bad_options_are_named(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"Plateau\\({name}="):
        bl.rules.Plateau(**option)


def test_watched_tasks_move_nothing(padded_ball):
    known = padded_ball()
    n = known.problem.size
    solver = bl.MORBiT(0.05, 0.5, weighting=bl.weightings.Watched(n - 1, bl.weightings.SimplexAscent(0.02)))
    watched = bl.solve(known.problem, solver, known.x, steps=50, progress=False)
    assert watched.weights[-1] == 0
    np.testing.assert_allclose(watched.weights.sum(), 1, rtol=1e-6)
    assert watched.history.validation[-1, -1] != watched.history.validation[0, -1]
    with pytest.raises(ValueError, match="Watched\\(seen=0\\)"):
        bl.solve(known.problem, solver.replace(weighting=bl.weightings.Watched(0)), known.x, steps=5, progress=False)


def test_watched_needs_a_weighting():
    for wrong in (None, bl.weightings.Average):
        with pytest.raises(TypeError, match=r"Watched\(weighting="):
            bl.weightings.Watched(1, wrong)
