"""What the suite over estimators must find: an estimator that is right but for one thing."""

import jax
import jax.numpy as jnp
import pytest

from bilevel._core.module import leaf, part
from bilevel.hypergradients import ConjugateGradient, Tracked
from bilevel.hypergradients.hypergradient import Implicit, LinearSolution, implicit
from bilevel.testing import check_hypergradient


@part
class Solves(Implicit):
    """v = A^-1 f_y, by conjugate gradients."""

    scale: float = leaf(default=1.0)

    def init(self, task, x, y, sample):
        return LinearSolution(jax.tree.map(jnp.zeros_like, y))

    def prepare(self, task, x, y, state, sample):
        return ConjugateGradient().prepare(task, x, y, state, sample)


def test_an_estimator_that_is_right_passes():
    check_hypergradient(Solves())


@part
class WrongSign(Solves):
    def surrogate(self, task, x, y, state, sample):
        return implicit(task, x, y, jax.tree.map(jnp.negative, state.v), sample)


@part
class OtherValue(Solves):
    def surrogate(self, task, x, y, state, sample):
        return super().surrogate(task, x, y, state, sample) + 1


@part
class Scaled(Solves):
    """Right only at scale 1."""

    scale: float = leaf(default=1.1)

    def surrogate(self, task, x, y, state, sample):
        return implicit(task, x, y, jax.tree.map(lambda v: self.scale * v, state.v), sample)


@part
class OtherState(Solves):
    def prepare(self, task, x, y, state, sample):
        return LinearSolution((Solves.prepare(self, task, x, y, state, sample).v,))


@part
class StaticNumber(Solves):
    lr: float = 0.1


@part
class AsksForCurvature(Solves):
    def prepare(self, task, x, y, state, sample):
        return jax.tree.map(lambda v: v + 0 * task.curvature, Solves.prepare(self, task, x, y, state, sample))


CALLS = []


@part
class Remembers(Solves):
    """Its value is off by more at every trace, within what it states."""

    value_error = 1.0

    def surrogate(self, task, x, y, state, sample):
        CALLS.append(None)
        return implicit(task, x, y, state.v, sample) * 1.0 + 1e-3 * len(CALLS)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (WrongSign(), "gradient is .*away from f_x - J A"),
        (Scaled(), "gradient is .*away from f_x - J A"),
        (OtherValue(), "value is .*away from f_i"),
        (OtherState(), "state after prepare"),
        (Remembers(), "called again, it is not the same"),
        (StaticNumber(), "compile again"),
        (Tracked(lr=-1.0), "refuses it"),
        ("Exact", "is no Hypergradient"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_wrong_is_found(estimator, said):
    with pytest.raises(AssertionError, match=f"(?s){said}"):
        check_hypergradient(estimator)


def test_what_was_not_asked_for_is_not_given():
    with pytest.raises(TypeError, match="NoneType"):
        check_hypergradient(AsksForCurvature())
