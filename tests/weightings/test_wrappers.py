"""Weightings around others: what they compare tasks by, and that x descends just that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel.weightings import (
    Average,
    Exponentiated,
    Folds,
    Ratio,
    Regret,
    Shrunk,
    SimplexAscent,
    UpperBound,
    Watched,
)
from bilevel.weightings.baselines import Baselines
from ulp import assert_ulp

LOSSES = np.array([0.3, 1.5, 0.7, 2.0])
B = np.array([0.1, 1.2, 0.4, 0.5])
SPREAD = LOSSES.var(ddof=1) - np.mean(B**2)
SHARES = SPREAD / (SPREAD + B**2)
MEAN = LOSSES.mean()

SEEN = {  # what moves the weights
    "regret": (Regret, LOSSES - B),
    "ratio": (Ratio, LOSSES / B),
    "bound": (lambda b, weighting: UpperBound(b, weighting=weighting), LOSSES + B),
    "lower bound": (lambda b, weighting: UpperBound(b, -2.0, weighting), LOSSES - 2 * B),
    "shrunk": (Shrunk, MEAN + SHARES * (LOSSES - MEAN)),
    "both": (lambda b, weighting: Ratio(b, Regret(b, weighting)), LOSSES / B - B),
    "both the other way": (lambda b, weighting: Regret(b, Ratio(b, weighting)), (LOSSES - B) / B),
}


@pytest.mark.parametrize("inside", [SimplexAscent(), Exponentiated()], ids=repr)
@pytest.mark.parametrize("name", SEEN)
def test_the_weighting_inside_sees_the_closed_form(name, inside):
    make, seen = SEEN[name]
    around = make(B, inside)
    weights, state = around.init(4, jnp.float64)
    plain, own = inside.init(4, jnp.float64)
    moved = around.update(weights, jnp.array(LOSSES), state, 0.1)[0]
    assert_ulp(moved, inside.update(plain, jnp.array(seen), own, 0.1)[0])


@pytest.mark.parametrize("name", SEEN)
def test_what_tasks_are_compared_by_is_told_in_numpy(name):
    make, seen = SEEN[name]
    found = make(B, SimplexAscent()).compared(LOSSES)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, seen, rtol=1e-12)


def test_folds_and_watched_tasks_are_compared_as_their_tasks_are():
    """The mean of both folds stands for each of them; a task that does not count is never the worst."""
    assert Folds(2, Regret([0.1, 0.2])).compared(np.array([1.0, 2.0, 3.0, 5.0])).tolist() == [1.9, 3.3, 1.9, 3.3]
    watched = Watched(2, Regret([0.5, 1.0]))
    assert watched.compared(np.array([1.0, 1.25, 9.0])).tolist() == [0.5, 0.25, 0.25]
    assert (watched.compares, Folds(2).compares, Ratio(B, Regret(B)).compares) == ("regret", "loss", "regret of ratios")


def test_baselines_are_those_of_the_outermost_that_has_any():
    assert Folds(2, Regret(Baselines([0.1, 0.2]))).known_baselines(4).tolist() == [0.1, 0.2, 0.1, 0.2]
    np.testing.assert_array_equal(Watched(1, Ratio([0.5])).known_baselines(2), [0.5, np.nan])
    assert Ratio([2.0], Regret([1.0])).known_baselines(1).tolist() == [2.0]
    assert UpperBound([1.0], 1.0, Regret([3.0])).known_baselines(1).tolist() == [3.0]
    assert Shrunk([1.0]).known_baselines(1) is None
    assert Regret([0.0, 0.0]).known_baselines(2) is None  # regrets are the losses


def test_the_worst_regret_is_of_a_task_whose_baseline_is_known():
    known = Baselines([0.5, np.nan, 0.1], names=["a", "b", "c"])
    assert known.worst_regret([1.0, 9.0, 1.0]) == (0.9, 2, "c")


def test_the_shares_of_shrunk_losses_are_where_the_spread_exceeds_the_noise():
    assert SPREAD > 0
    _, state = Shrunk(np.full(4, 5.0)).update(*_first(Shrunk(np.full(4, 5.0))), 0.1)
    assert np.all(state.kept.shares == 0)  # all differences may be noise
    _, state = Shrunk(np.zeros(4)).update(*_first(Shrunk(np.zeros(4))), 0.1)
    assert np.all(state.kept.shares == 1)


def _first(weighting):
    weights, state = weighting.init(4, jnp.float64)
    return weights, jnp.array(LOSSES), state


@pytest.mark.parametrize("name", SEEN)
def test_x_descends_what_the_tasks_are_compared_by(name):
    """The slope of sum_i weights_i s_i in the losses, by finite differences of what the weighting inside is given."""
    make, _ = SEEN[name]
    given = []

    class Spy(SimplexAscent):
        def update(self, weights, losses, state, rate):
            given.append(np.asarray(losses))
            return super().update(weights, losses, state, rate)

    around = make(B, Spy())
    weights, state = around.init(4, jnp.float64)
    weights, state = around.update(weights, jnp.array(LOSSES), state, 0.3)
    in_direction = np.asarray(around.in_direction(weights, state))
    if name == "shrunk":  # its shares follow the losses and are held while x moves
        expected = SHARES * weights + np.mean((1 - SHARES) * weights)
        np.testing.assert_allclose(in_direction, expected, rtol=1e-14)
        assert in_direction.sum() == pytest.approx(1, abs=1e-14)
        return
    for i, change in enumerate(np.eye(4)):
        given.clear()
        for sign in (1, -1):
            around.update(weights, jnp.array(LOSSES + sign * change), state, 0.3)
        assert weights @ (given[0] - given[1]) / 2 == pytest.approx(in_direction[i], rel=1e-12)


def test_weights_without_another_objective_are_those_of_x():
    for weighting in (Average(), SimplexAscent(), Regret(B), UpperBound(B), Watched(3)):
        weights, state = weighting.init(4, jnp.float64)
        assert np.array_equal(weighting.in_direction(weights, state), weights)


def test_folds_take_the_mean_and_share_the_weight():
    folds, alone = Folds(3, Ratio(B, Exponentiated())), Ratio(B, Exponentiated())
    many, one = folds.init(12, jnp.float64), alone.init(4, jnp.float64)
    for losses in np.random.default_rng(0).normal(size=(5, 3, 4)):
        many = folds.update(many[0], jnp.array(losses.ravel()), many[1], 0.3)
        one = alone.update(one[0], jnp.array(losses.mean(axis=0)), one[1], 0.3)
    assert_ulp(many[0], jnp.tile(one[0] / 3, 3))
    assert_ulp(folds.in_direction(*many), jnp.tile(alone.in_direction(*one) / 3, 3))
    assert_ulp(folds.sizes(jnp.tile(jnp.array(LOSSES), 3), many[1]), alone.sizes(jnp.array(LOSSES), one[1]))


def test_watched_tasks_have_no_part_in_another_objective():
    watched, alone = Watched(4, Ratio(B)), Ratio(B)
    more, one = watched.init(6, jnp.float64), alone.init(4, jnp.float64)
    losses = jnp.array([*LOSSES, 100.0, -100.0])
    more, one = watched.update(more[0], losses, more[1], 0.1), alone.update(one[0], losses[:4], one[1], 0.1)
    assert_ulp(watched.in_direction(*more), jnp.pad(alone.in_direction(*one), (0, 2)))
    assert float(jnp.max(watched.sizes(losses, more[1]))) == float(jnp.max(alone.sizes(losses[:4], one[1])))


def test_the_size_of_a_regret_is_between_half_the_loss_and_the_loss():
    weighting = Regret([0.1, 1.0, 5.0, -9.0])
    _, state = weighting.init(4, jnp.float64)
    assert weighting.sizes(jnp.ones(4), state).tolist() == [0.9, 0.5, 1.0, 1.0]


def test_some_of_the_tasks_take_their_own_rows_of_the_state():
    """As a solver does that looks at a few tasks in a step."""
    weighting, rows = Ratio(B), np.array([2, 0])
    weights, state = weighting.init(4, jnp.float64)
    few = jax.tree.map(lambda a: a[rows], state)
    assert_ulp(weighting.in_direction(weights[rows], few), weighting.in_direction(weights, state)[rows])


def test_baselines_by_name_are_put_into_the_order_of_a_problem():
    class TwoTasks:
        names = ("south", "north")

    known = Baselines([0.1, 0.2, 0.3], names=["north", "east", "south"])
    assert known.array(TwoTasks()).tolist() == [0.3, 0.1]
    with pytest.raises(ValueError, match=r"Baselines\(names=...\) has none for task 'south'"):
        Baselines([0.1], names=["north"]).array(TwoTasks())
    assert Baselines([0.1, 0.2]).regrets([1.0, 1.0]).tolist() == [0.9, 0.8]


@pytest.mark.parametrize("make", [Regret, Ratio, UpperBound, Shrunk], ids=lambda c: c.__name__)
def test_the_weighting_inside_must_be_one(make):
    with pytest.raises(TypeError, match=rf"{make.__name__}\(weighting=.*\): it needs a weighting object"):
        make(B, weighting=SimplexAscent)
