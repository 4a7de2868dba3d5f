"""A history is a mapping over its columns, and every column an attribute."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from bilevel.results.history import COLUMNS
from bilevel.results.result import History

NAMES = list(COLUMNS)


@pytest.fixture
def history():
    """Four evaluations of two tasks."""
    columns = {name: np.arange(4.0) + i for i, name in enumerate(NAMES)}
    return History(**columns | {name: np.ones((4, 2)) for name in ("validation", "test", "weights", "lower_rate")})


def test_every_column_is_an_entry_and_an_attribute(history):
    assert isinstance(history, Mapping)
    assert list(history) == NAMES
    assert len(history) == len(dict(history)) == len(NAMES)
    for name, column in history.items():
        assert column is history[name] is getattr(history, name)
    assert history.evaluations == 4


def test_a_column_that_is_not_there_is_absent(history):
    assert "test" in history
    without = dataclasses.replace(history, test=None)
    assert "test" not in without
    assert without.get("test") is None
    assert list(without) == [name for name in NAMES if name != "test"]
    with pytest.raises(
        KeyError, match=r"the history has no column 'test'; its columns are step, seconds, validation, w"
    ):
        without["test"]


def test_metrics_are_entries_too(history):
    measured = dataclasses.replace(history, metrics={"test accuracy": np.zeros((4, 2))})
    assert list(measured) == [*NAMES, "test accuracy"]
    assert measured["test accuracy"] is measured.metrics["test accuracy"]
    assert "test accuracy" not in history


@pytest.mark.parametrize("name", ["worst", "keys", "Validation", 0, None])
def test_only_columns_are_entries(history, name):
    assert name not in history
    with pytest.raises(KeyError, match="its columns are step, seconds, validation, test, weights"):
        history[name]


def test_histories_are_equal_if_they_are_the_same_object(history):
    assert history == history
    assert history != dataclasses.replace(history)
    assert len({history, history}) == 1
