"""What `weighting=` may be."""

import jax
import pytest

import bilevel as bl
from bilevel.estimators.fitting import weighting_of
from bilevel.estimators.learning import with_rate


def test_average_and_worst_are_one_program():
    kinds = [weighting_of("Model", given, 4) for given in ("min-max", "min-avg", 0.5)]
    assert len({jax.tree.structure(kind) for kind in kinds}) == 1
    assert [kind.weighting.weighting.fraction for kind in kinds] == [0.25, 1.0, 0.5]


def test_an_object_is_taken_as_it_is():
    own = bl.weightings.Regret([0.0, 1.0])
    assert weighting_of("Model", own, 2) is own


@pytest.mark.parametrize("wrong", ["worst", 0.0, 1.5, None, bl.weightings.CVaR, True])
def test_what_it_cannot_be(wrong):
    with pytest.raises(ValueError, match=r"Model\(weighting=.*\): it needs \"min-max\", \"min-avg\", \"regret\", the"):
        weighting_of("Model", wrong, 2)


def test_a_rate_is_given_to_what_moves_and_has_none():
    assert with_rate(bl.weightings.SimplexAscent(), 0.5) == bl.weightings.SimplexAscent(0.5)
    assert with_rate(bl.weightings.SimplexAscent(0.1), 0.5) == bl.weightings.SimplexAscent(0.1)
    assert with_rate(bl.weightings.Average(), 0.5) == bl.weightings.Average()
    inner = with_rate(bl.weightings.Regret([0.0]), 0.5)
    assert inner.weighting == bl.weightings.SimplexAscent(0.5)
