"""Going on with smaller rates, whatever kind of rates a solver has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import loop
from bilevel._run.divergence import SmallerRates, Stop
from bilevel.weightings import SimplexAscent
from diverging import CALM, PROBLEM, SMALLER, Own, diverge, solve

# ------------------------------------------------------------------ all kinds of rates


def test_automatic_rates_are_made_smaller_too():
    """Measured rates times 40 are too large; what is left of the 40 is not."""
    solver = bl.MORBiT(rates=bl.rates.Scaled(bl.rates.Measured(), 40.0))
    result = solve(PROBLEM, solver, SmallerRates(0.25))
    assert result.status == "finished"
    assert result.divergences
    scale = 40 * 0.25 ** len(result.divergences)
    rates = solve(PROBLEM, bl.MORBiT(), Stop()).history
    np.testing.assert_allclose(result.history.lower_rate[-1], scale * rates.lower_rate[-1], rtol=0.05)


def test_a_scaled_rate_is_the_rate_times_the_factor():
    """In the first step, before the runs are at different points."""
    whole, half = (
        solve(PROBLEM, bl.MORBiT(rates=rates), Stop(), steps=1).history
        for rates in (bl.rates.Measured(), bl.rates.Scaled(bl.rates.Measured(), 0.5))
    )
    for name in ("upper_rate", "lower_rate"):
        np.testing.assert_allclose(half[name][-1], whole[name][-1] / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("solver", "leaves"),
    [
        (bl.MORBiT(0.2, 0.4, weighting=SimplexAscent(0.1)), [0.1, 0.2, 0.05]),
        (bl.MORBiT(0.2, 0.4, weighting=bl.weightings.Watched(2, SimplexAscent(0.1))), [0.1, 0.2, 0.05]),
        (
            bl.MORBiT(0.2, 0.4, hypergradient=bl.hypergradients.Tracked(0.6), weighting=bl.weightings.Average()),
            [0.1, 0.2, 0.3],
        ),
        (bl.SABA(0.2, 0.4, v_lr=0.6), [0.1, 0.2, 0.3]),
        (bl.MMB(0.2, 0.4, dual_lr=0.6, momentum=0.3), [0.1, 0.2, 0.3, 0.3]),
        (Own(0.2, 0.4), [0.1, 0.2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_rates_that_were_given_are_scaled_and_nothing_else_is(solver, leaves):
    smaller = solver.with_scaled_rates(0.5)
    numbers = [leaf for leaf in jax.tree.leaves(smaller) if leaf != 0.0]
    np.testing.assert_allclose(sorted(numbers), sorted(leaves))
    assert jax.tree.structure(smaller) == jax.tree.structure(solver)  # so that nothing is compiled again


def test_another_factor_of_a_schedule_or_of_chosen_rates_compiles_nothing():
    for solver in (bl.MORBiT(lambda step: 0.1, 0.2), bl.MORBiT()):
        half, quarter = solver.with_scaled_rates(0.5), solver.with_scaled_rates(0.25)
        assert jax.tree.structure(half) == jax.tree.structure(quarter)
        assert jax.tree.leaves(half) != jax.tree.leaves(quarter)


def test_going_on_at_smaller_numbers_compiles_nothing():
    solver = CALM["MORBiT"][1]
    solve(PROBLEM, solver, SMALLER)
    known = loop.steps._cache_size()
    assert len(solve(PROBLEM, solver.replace(lower_lr=3.0), SMALLER).divergences) >= 2
    assert loop.steps._cache_size() == known


@bl.part
class Growing(bl.Solver):
    """x grows by `growth` in every step; it has no rate."""

    growth: float = bl.leaf(default=1e30)

    def start(self, problem, x, y, key, steps):
        return bl.State(jnp.zeros((), int), x, y, jnp.full(problem.size, 1 / problem.size))

    def step(self, problem, state, key):
        info = bl.Info.of(jnp.zeros(problem.size), jnp.abs(state.x))
        return state._replace(step=state.step + 1, x=self.growth * state.x), info


@bl.part
class Told(Growing):
    """The same, and says what its rate is."""

    def with_scaled_rates(self, factor):
        return self.replace(growth=self.growth * factor)


def test_a_solver_without_known_rates_ends_and_says_so():
    result = diverge(PROBLEM, Growing(), SMALLER)
    assert "Growing diverged: at step 10 x became infinite or NaN. Its rates cannot be made smaller" in result.message
    [event] = result.divergences
    assert event.factor is None


def test_a_solver_may_say_what_its_rates_are():
    result = solve(PROBLEM, Told(), SmallerRates(1e-31))
    assert (result.status, len(result.divergences)) == ("finished", 1)
    assert float(result.x) < 0.5
