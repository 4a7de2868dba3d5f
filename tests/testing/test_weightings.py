"""What the suite over weightings must find: a weighting that is right but for one thing."""

import jax
import jax.numpy as jnp
import pytest

from bilevel._core.module import part
from bilevel.testing import check_weighting
from bilevel.weightings import Weighting


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
class ByPlace(Softmax):
    def update(self, weights, losses, state, rate):
        return jax.nn.softmax(losses + jnp.arange(len(losses))).astype(weights.dtype), state


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
        (ByPlace(), "permuting tasks"),  # beside losses of a hundred its preference vanishes
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
