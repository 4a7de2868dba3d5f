"""Every exported weighting goes through the suite that users have; a new one joins by being exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bilevel import weightings
from bilevel._core.module import part
from bilevel.testing import check_weighting
from bilevel.weightings import Average, CVaR, Exponentiated, Fixed, SimplexAscent, Watched, Weighting
from ulp import assert_ulp

# Those that need arguments, and options that matter; all others are made without arguments.
EXAMPLES = {
    "CVaR": [CVaR(0.5), CVaR(1 / 3, lr=0.2)],
    "Exponentiated": [Exponentiated(), Exponentiated(lr=0.2, floor=0.1)],
    "Fixed": [Fixed([0.3, 0.3, 0.2, 0.1, 0.1])],
    "SimplexAscent": [SimplexAscent(), SimplexAscent(0.2, pull=0.5, floor=0.1)],
    "Watched": [Watched(3), Watched(4, Exponentiated()), Watched(2, Average())],
}
EXPORTED = [name for name in weightings.__all__ if getattr(weightings, name) is not Weighting]


@pytest.mark.parametrize("name", EXPORTED)
def test_every_exported_weighting_conforms(name):
    for weighting in EXAMPLES.get(name) or [getattr(weightings, name)()]:
        check_weighting(weighting)


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


# What the suite must find: a weighting that is right but for one thing.


class Softmax(Weighting):
    def init(self, n, dtype):
        return jnp.full(n, 1 / n, dtype), ()

    def update(self, weights, losses, state, rate):
        return jax.nn.softmax(rate * losses).astype(weights.dtype), state


@part
class Right(Softmax):
    pass


@part
class OffTheSimplex(Softmax):
    def update(self, weights, losses, state, rate):
        return weights + rate * losses, state


@part
class OtherDtype(Softmax):
    def update(self, weights, losses, state, rate):
        return jax.nn.softmax(rate * losses).astype(jnp.bfloat16), state


@part
class GrowingState(Softmax):
    def update(self, weights, losses, state, rate):
        return super().update(weights, losses, state, rate)[0], (losses,)


@part
class WithoutRows(Softmax):
    def init(self, n, dtype):
        return super().init(n, dtype)[0], jnp.zeros((), dtype)


@part
class FirstTask(Softmax):
    def update(self, weights, losses, state, rate):
        return jax.nn.softmax(rate * losses.at[0].multiply(2)).astype(weights.dtype), state


@part
class LooksAtTheRate(Softmax):
    def update(self, weights, losses, state, rate):
        return (weights if rate > 1 else super().update(weights, losses, state, rate)[0]), state


@part
class SaysItStands(Softmax):
    moves = False


@part
class Remembers(Softmax):
    def update(self, weights, losses, state, rate):
        CALLS.append(len(CALLS))
        return super().update(weights, losses + len(CALLS), state, rate * (1 + len(CALLS)))


@part
class Refuses(Softmax):
    def check(self, n):
        raise ValueError("no")


@part
class NoBase:
    lr = None


CALLS = []


class NoPytree(Softmax):
    pass


def test_a_right_weighting_passes():
    check_weighting(Right())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (OffTheSimplex(), "negative|sum to"),
        (OtherDtype(), r"bfloat16\[5\]: it needs float32\[5\]"),
        (GrowingState(), "structure"),
        (WithoutRows(), r"one row per task, \(5, \.\.\.\)"),
        (FirstTask(), "permuting tasks"),
        (SaysItStands(), "moves is False"),
        (Remembers(), "not pure"),
        (Refuses(), r"check\(5\) refuses it: no"),
        (NoBase(), "no Weighting"),
        (NoPytree(), "not a pytree"),
    ],
    ids=lambda w: type(w).__name__ if not isinstance(w, str) else "",
)
def test_a_wrong_weighting_is_found_and_told_of(wrong, said):
    with pytest.raises(AssertionError, match=said):
        check_weighting(wrong)


def test_a_rate_that_is_structure_is_found():
    @part
    class StaticRate(Softmax):
        lr: float = 0.3

    with pytest.raises(AssertionError, match="compile again"):
        check_weighting(StaticRate())


def test_a_weighting_that_branches_on_values_does_not_compile():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        check_weighting(LooksAtTheRate())
