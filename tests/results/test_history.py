"""A history is a mapping over its columns, and every column an attribute."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from bilevel.results.history import COLUMNS, History
from bilevel.results.storage import PER_TASK

NAMES = list(COLUMNS)


@pytest.fixture
def history():
    """Four evaluations of two tasks."""
    columns = {name: np.arange(4.0) + i for i, name in enumerate(NAMES)}
    return History(**columns | {name: np.ones((4, 2)) for name in PER_TASK})


def test_every_column_is_an_entry_and_an_attribute(history):
    assert isinstance(history, Mapping)
    assert list(history) == NAMES
    assert len(history) == len(dict(history)) == len(NAMES)
    for name, column in history.items():
        assert column is history[name] is getattr(history, name)
    assert history.evaluations == 4


@pytest.mark.parametrize("role", ["selection", "test"])
def test_a_column_that_is_not_there_is_absent(history, role):
    assert role in history
    without = dataclasses.replace(history, **{role: None})
    assert role not in without
    assert without.get(role) is None
    assert list(without) == [name for name in NAMES if name != role]
    with pytest.raises(KeyError, match=rf"the history has no column '{role}'; its columns are step, seconds, valid"):
        without[role]


def test_the_worst_selection_loss_is_the_largest_of_the_tasks(history):
    losses = np.array([[1.0, 3.0], [2.0, 0.0], [5.0, 4.0], [1.0, 1.0]])
    assert dataclasses.replace(history, selection=losses).selection_worst.tolist() == [3, 2, 5, 1]
    assert dataclasses.replace(history, selection=None).selection_worst is None


def test_metrics_are_entries_too(history):
    measured = dataclasses.replace(history, metrics={"test accuracy": np.zeros((4, 2))})
    assert list(measured) == [*NAMES, "test accuracy"]
    assert measured["test accuracy"] is measured.metrics["test accuracy"]
    assert "test accuracy" not in history


@pytest.mark.parametrize("name", ["worst", "keys", "Validation", 0, None])
def test_only_columns_are_entries(history, name):
    assert name not in history
    with pytest.raises(KeyError, match="its columns are step, seconds, validation, selection, test, weights"):
        history[name]


def test_histories_are_equal_if_they_are_the_same_object(history):
    assert history == history
    assert history != dataclasses.replace(history)
    assert len({history, history}) == 1
