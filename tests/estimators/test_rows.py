"""Rows are merged into a weighted set that depends on their content only, and are split into parts."""

import numpy as np
import pytest

from bilevel.estimators import rows as module
from bilevel.estimators.rows import PARTS, UNKNOWN, Shares, WeightedRows, merged, parted, parts_given


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


SHARES = Shares(0.2, 0.15, smallest=20)


def rows_of(sizes, classes=2, part=UNKNOWN):
    task = np.repeat(np.arange(len(sizes)), sizes)
    n = len(task)
    return WeightedRows(np.arange(n), task, np.arange(n) % classes, np.ones(n), np.full(n, part))


def split(rows, tasks, **options):
    arguments = {"able": np.ones(tasks, bool), "shares": SHARES, "stratify": True, "seed": 0} | options
    return parted("Model", rows, **arguments)


def test_every_task_and_class_has_its_share_in_each_part():
    rows, learns = split(rows_of([200, 40]), 2)
    assert learns.all()
    for task, size in ((0, 200), (1, 40)):
        for label in (0, 1):
            own = rows.part[(rows.task == task) & (rows.target == label)]
            counts = np.bincount(own, minlength=3) / (size / 2)
            assert np.all(np.abs(counts - [0.65, 0.2, 0.15]) <= 1 / (size / 2))


def test_small_tasks_only_train_unless_all_are_small():
    rows, learns = split(rows_of([40, 19]), 2)
    assert learns.tolist() == [True, False]
    assert np.all(rows.part[rows.task == 1] == 0)
    assert split(rows_of([19, 4, 3]), 3)[1].tolist() == [True, True, False]


def test_where_nothing_can_be_split_it_says_so():
    with pytest.warns(UserWarning, match="Model: no task has rows .* a task needs 4 different rows"):
        rows, learns = split(rows_of([3]), 1)
    assert not learns.any()
    assert np.all(rows.part == 0)


def test_what_is_given_stays_and_tasks_without_a_part_have_no_say():
    rows = rows_of([6, 6], part=0)
    rows = rows._replace(part=np.array([0, 0, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1]))
    found, learns = split(rows, 2)
    assert found.part.tolist() == rows.part.tolist()
    assert learns.tolist() == [True, False]


def test_a_split_depends_on_the_rows_of_the_task_alone():
    alone, _ = split(rows_of([50]), 1)
    among, _ = split(rows_of([50, 80]), 2)
    assert among.part[:50].tolist() == alone.part.tolist()


def test_labels_of_parts():
    assert parts_given("fit", None, 2).tolist() == [UNKNOWN, UNKNOWN]
    assert parts_given("fit", [*PARTS], 3).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"fit\(part=...\) has 'test': it needs 'train', 'validation', 'selection'"):
        parts_given("fit", ["train", "test"], 2)
    with pytest.raises(ValueError, match=r"has shape \(2,\): it needs one label for each of 3 rows"):
        parts_given("fit", ["train", "train"], 3)
