"""Rows as a weighted set: what comes out depends on what rows hold and weigh, and on nothing else."""

import numpy as np
import pytest

from bilevel.estimators import rows as module
from bilevel.estimators.rows import merged


def whole(rows, X):
    return list(zip(X[rows.place].tolist(), *(column.tolist() for column in rows[1:]), strict=True))


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, 3)) * 1.0  # few different rows
    return X, rng.integers(0, 2, 60), rng.integers(0, 2, 60), rng.integers(0, 4, 60) * 1.0, rng.integers(0, 2, 60)


def test_each_different_row_is_there_once_with_all_its_weight(table):
    X, task, target, weight, part = table
    rows = merged(*table, seed=0)
    totals = {}
    for key, w in zip(zip(map(tuple, X), task, target, part, strict=True), weight, strict=True):
        totals[key] = totals.get(key, 0) + w
    found = zip(map(tuple, X[rows.place]), rows.task, rows.target, rows.part, strict=True)
    assert dict(zip(found, rows.weight, strict=True)) == {key: w for key, w in totals.items() if w > 0}
    assert np.all(np.diff(rows.task) >= 0)


def test_the_order_of_rows_and_how_their_weight_is_written_do_not_matter(table):
    expected = whole(merged(*table, seed=3), table[0])
    order = np.random.default_rng(1).permutation(60)
    shuffled = [column[order] for column in table]
    assert whole(merged(*shuffled, seed=3), shuffled[0]) == expected
    repeated = [np.repeat(column, table[3].astype(int), axis=0) for column in table]
    repeated[3] = np.ones(len(repeated[0]))
    assert whole(merged(*repeated, seed=3), repeated[0]) == expected


def test_the_seed_is_the_order_and_the_number_of_a_task_is_not():
    X, one = np.arange(50.0)[:, None], np.zeros(50, int)
    first, other = (merged(X, one, one, np.ones(50), one, seed).place for seed in (0, 1))
    assert sorted(first) == sorted(other) == list(range(50))
    assert first.tolist() != other.tolist()
    assert merged(X, one + 7, one, np.ones(50), one, 0).place.tolist() == first.tolist()


def test_zero_has_one_sign():
    X, one = np.array([[0.0], [-0.0]]), np.zeros(2, int)
    assert merged(X, one, one, np.ones(2), one, 0).weight.tolist() == [2.0]


def test_different_rows_of_one_hash_stay_apart(monkeypatch):
    monkeypatch.setattr(module, "_hashes", lambda X, extra, index, generator: np.zeros(len(index), np.uint64))
    X, one = np.array([[1.0], [1.0], [2.0]]), np.zeros(3, int)
    assert merged(X, one, one, np.ones(3), one, 0).weight.tolist() == [2.0, 1.0]
