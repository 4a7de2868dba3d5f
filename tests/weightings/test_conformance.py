"""Every exported weighting goes through the suite that users have; a new one joins by being exported."""

import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import weightings
from bilevel.testing import check_weighting
from bilevel.weightings import (
    Average,
    CVaR,
    Exponentiated,
    Fixed,
    Folds,
    Ratio,
    Regret,
    Shrunk,
    SimplexAscent,
    UpperBound,
    Watched,
    Weighting,
)
from ulp import assert_ulp

# Those that need arguments, and options that matter; all others are made without arguments.
FIVE = np.array([0.5, 0.1, 2.0, 0.3, 1.0])
EXAMPLES = {
    "CVaR": [CVaR(0.5), CVaR(1 / 3, lr=0.2)],
    "Exponentiated": [Exponentiated(), Exponentiated(lr=0.2, floor=0.1)],
    "Fixed": [Fixed([0.3, 0.3, 0.2, 0.1, 0.1])],
    "Folds": [Folds(5), Folds(1, Exponentiated())],
    "Ratio": [Ratio(FIVE), Ratio(FIVE, Exponentiated(0.1)), Ratio(FIVE, Average())],
    "Regret": [Regret(FIVE), Regret(FIVE, Exponentiated()), Regret(FIVE, Ratio(FIVE, CVaR(0.5)))],
    "Shrunk": [Shrunk(FIVE), Shrunk(10 * FIVE, Exponentiated())],
    "UpperBound": [UpperBound(FIVE), UpperBound(FIVE, -2.0, CVaR(0.5))],
    "SimplexAscent": [SimplexAscent(), SimplexAscent(0.2, pull=0.5, floor=0.1)],
    "Watched": [Watched(3), Watched(4, Exponentiated()), Watched(2, Average()), Watched(3, Regret(FIVE[:3]))],
}
EXPORTED = [name for name in weightings.__all__ if getattr(weightings, name) is not Weighting]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_exported_weighting_conforms(name):
    for weighting in EXAMPLES.get(name) or [getattr(weightings, name)()]:
        check_weighting(weighting)


def test_folds_of_several_tasks_conform():
    check_weighting(Folds(3), tasks=6)
    check_weighting(Folds(2, Regret([0.1, 0.2, 0.3], Exponentiated())), tasks=6)


def test_a_single_task_conforms_too():
    check_weighting(SimplexAscent(), tasks=1)


def test_the_state_of_watched_tasks_has_rows_for_all_and_moves_the_seen_ones_as_if_alone():
    alone, watched = Exponentiated(), Watched(2, Exponentiated())
    one, other = alone.init(2, jnp.float64), watched.init(4, jnp.float64)
    for losses in np.random.default_rng(0).normal(size=(5, 4)):
        one = alone.update(one[0], jnp.array(losses[:2]), one[1], 0.3)
        other = watched.update(other[0], jnp.array(losses), other[1], 0.3)
    assert other[1].shape == (4,)
    assert_ulp(other[0][:2], one[0])
    assert not np.any(other[0][2:])
    assert_ulp(other[1][:2], one[1])
