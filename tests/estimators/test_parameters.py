"""Labels of tasks, and what `weighting=` may be."""

import jax
import numpy as np
import pandas as pd
import pytest

import bilevel as bl
from bilevel.estimators.estimator import heads_of, joined, numbered
from bilevel.estimators.fitting import weighting_of
from bilevel.estimators.heads import Head
from bilevel.estimators.learning import with_rate

HEADS = {name: Head(np.zeros((1, 1)), np.zeros(1), np.empty(0)) for name in ("north", "south")}


@pytest.mark.parametrize(
    "given", [["b", "a", "b"], pd.Series(["b", "a", "b"]), pd.Categorical(["b", "a", "b"]), np.array(["b", "a", "b"])]
)
def test_labels_of_any_kind_are_numbered_in_their_order(given):
    labels, number = numbered("fit", given, 3)
    assert labels.tolist() == ["a", "b"]
    assert labels.dtype.kind == "U"
    assert number.tolist() == [1, 0, 1]


def test_without_labels_there_is_one_task():
    assert [own.tolist() for own in numbered("fit", None, 2)] == [["all"], [0, 0]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["a"], r"fit\(task=...\) has shape \(1,\): it needs the label of each row's task, 2 in all"),
        (["a", None], "is missing in 1 rows, first in row 1"),
        ([0.5, float("nan")], "is missing in 1 rows, first in row 1"),
    ],
)
def test_labels_that_do_not_fit(given, said):
    with pytest.raises(ValueError, match=said):
        numbered("fit", given, 2)


def test_labels_are_of_one_type():
    with pytest.raises(TypeError, match="labels of type int, str: it needs texts or numbers, of one type"):
        numbered("fit", np.array([1, "a"], object), 2)
    with pytest.raises(TypeError, match="labels so far are of type str32, and it got int64"):
        joined("adapt", np.array(["a"]), np.array([1]))
    assert joined("adapt", np.array(["b"]), np.array(["abc"])).tolist() == ["abc", "b"]


def test_heads_are_found_by_label():
    assert heads_of("Model", HEADS, np.array(["south"]), given=True) == [HEADS["south"]]
    with pytest.raises(ValueError, match=r"has 'nort', .*: adapt\(X, y, task='nort'\) .* Did you mean 'north'\?"):
        heads_of("Model", HEADS, np.array(["nort"]), given=True)
    with pytest.raises(ValueError, match=r"fitted with 2 tasks: predict\(task=...\) needs the label of each row's"):
        heads_of("Model", HEADS, np.array(["all"]), given=False)


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
