"""Splits of tasks."""

import numpy as np
import pytest

from bilevel.estimators.rows import PARTS, UNKNOWN, Shares, WeightedRows, parted, parts_given

SHARES = Shares(0.2, 0.15, smallest=20)


def table(sizes, classes=2, part=UNKNOWN):
    task = np.repeat(np.arange(len(sizes)), sizes)
    n = len(task)
    return WeightedRows(np.arange(n), task, np.arange(n) % classes, np.ones(n), np.full(n, part))


def split(rows, tasks, **options):
    arguments = {"able": np.ones(tasks, bool), "shares": SHARES, "stratify": True, "seed": 0} | options
    return parted("Model", rows, **arguments)


def test_every_task_and_class_has_its_share_in_each_part():
    rows, learns = split(table([200, 40]), 2)
    assert learns.all()
    for task, size in ((0, 200), (1, 40)):
        for label in (0, 1):
            own = rows.part[(rows.task == task) & (rows.target == label)]
            counts = np.bincount(own, minlength=3) / (size / 2)
            assert np.all(np.abs(counts - [0.65, 0.2, 0.15]) <= 1 / (size / 2))


def test_small_tasks_only_train_unless_all_are_small():
    rows, learns = split(table([40, 19]), 2)
    assert learns.tolist() == [True, False]
    assert np.all(rows.part[rows.task == 1] == 0)
    assert split(table([19, 4, 3]), 3)[1].tolist() == [True, True, False]


def test_where_nothing_can_be_split_it_says_so():
    with pytest.warns(UserWarning, match="Model: no task has rows .* a task needs 4 different rows"):
        rows, learns = split(table([3]), 1)
    assert not learns.any()
    assert np.all(rows.part == 0)


def test_what_is_given_stays_and_tasks_without_a_part_have_no_say():
    rows = table([6, 6], part=0)
    rows = rows._replace(part=np.array([0, 0, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1]))
    found, learns = split(rows, 2)
    assert found.part.tolist() == rows.part.tolist()
    assert learns.tolist() == [True, False]


def test_a_split_depends_on_the_rows_of_the_task_alone():
    alone, _ = split(table([50]), 1)
    among, _ = split(table([50, 80]), 2)
    assert among.part[:50].tolist() == alone.part.tolist()


def test_labels_of_parts():
    assert parts_given("fit", None, 2).tolist() == [UNKNOWN, UNKNOWN]
    assert parts_given("fit", [*PARTS], 3).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"fit\(part=...\) has 'test': it needs 'train', 'validation', 'selection'"):
        parts_given("fit", ["train", "test"], 2)
    with pytest.raises(ValueError, match=r"has shape \(2,\): it needs one label for each of 3 rows"):
        parts_given("fit", ["train", "train"], 3)
