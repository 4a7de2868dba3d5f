"""`bl.split`: every row once, shares kept class by class, and a task's parts independent of other tasks."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bilevel as bl
from bilevel.problem.task import ROLES
from bilevel.studies.datasets.splitting import allot

SHARES = {"validation": 0.2, "selection": 0.15, "test": 0.15}


def parts(task):
    return {role: getattr(task, role) for role in ROLES if getattr(task, role) is not None}


def same(one, other):
    assert one.name == other.name
    assert all(np.array_equal(a, b) for a, b in zip(parts(one).values(), parts(other).values(), strict=True))


@st.composite
def tables(draw):
    """Tasks and classes of rows, at least four rows of each task."""
    count = draw(st.integers(1, 60))
    task = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    task += [name for name in sorted(set(task)) for _ in range(4)]
    classes = draw(st.lists(st.integers(0, 4), min_size=len(task), max_size=len(task)))
    return np.array(task), np.array(classes)


@st.composite
def shares(draw):
    given_ = [draw(st.integers(1, 30)), draw(st.integers(0, 30)), draw(st.integers(0, 30))]
    return dict(zip(SHARES, (part / 100 for part in given_), strict=True))


# ------------------------------------------------------------------ theorems


@settings(deadline=None, max_examples=60)
@given(tables(), shares(), st.integers(0, 2**40))
def test_every_row_is_in_one_part_of_its_own_task(table, given_, seed):
    task, classes = table
    tasks = bl.split({"row": np.arange(len(task)), "task": task}, task, classes, seed=seed, **given_)
    assert [own.name for own in tasks] == list(dict.fromkeys(task.tolist()))
    for own in tasks:
        assert set(parts(own)) == {"train", *(role for role, share in given_.items() if share)}
        assert all(set(part["task"].tolist()) == {own.name} for part in parts(own).values())  # not empty, its own
    found = np.concatenate([part["row"] for own in tasks for part in parts(own).values()])
    assert sorted(found.tolist()) == list(range(len(task)))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), shares())
def test_the_number_of_a_class_in_a_part_is_less_than_one_from_its_share(sizes, given_):
    exact = [Fraction(str(share)) for share in given_.values()]
    exact = [1 - sum(exact), *exact]
    counts = allot(sizes, exact)
    assert counts.sum(axis=1).tolist() == sizes
    for size, own in zip(sizes, counts.tolist(), strict=True):
        assert all(abs(n - size * share) < 1 for n, share in zip(own, exact, strict=True))


@settings(deadline=None, max_examples=60)
@given(tables(), st.integers(0, 99))
def test_parts_keep_the_shares_of_classes(table, seed):
    """Less than 1 away; only a row that an empty part was given may be beyond it."""
    task, classes = table
    every = {"train": 0.5} | SHARES
    for own in bl.split({"class": classes, "task": task}, task, classes, seed=seed):
        mine = classes[task == own.name]
        for label in set(mine.tolist()):
            counts = {role: int((part["class"] == label).sum()) for role, part in parts(own).items()}
            given_away = [role for role, part in parts(own).items() if len(part["class"]) == 1]
            for role, number in counts.items():
                gap = abs(number - every[role] * (mine == label).sum())
                assert gap < 1 + 1e-9 or (given_away and gap < 2)


@settings(deadline=None, max_examples=40)
@given(tables(), st.integers(0, 99))
def test_a_task_is_split_as_it_would_be_alone(table, seed):
    task, classes = table
    together = bl.split(np.arange(len(task)), task, classes, seed=seed)
    for own in together:
        index = np.flatnonzero(task == own.name)
        [alone] = bl.split(index, own.name, classes[index], seed=seed)
        same(alone, own)


def test_the_seed_decides():
    rows, task = np.arange(200), np.repeat(["a", "b"], 100)
    one, again, other = (bl.split(rows, task, seed=seed) for seed in (3, 3, 4))
    for pair in zip(one, again, strict=True):
        same(*pair)
    assert not np.array_equal(one[0].test, other[0].test)
    assert not np.array_equal(one[0].test, one[1].test - 100)  # and the name


def test_many_classes_of_one_row_do_not_favour_one_part():
    """Each alone would train: by what earlier classes left over, all parts get their shares."""
    [task] = bl.split(np.arange(40), stratify=np.arange(40))
    assert [len(part) for part in parts(task).values()] == [20, 8, 6, 6]


def test_a_class_is_drawn_at_random():
    """Of ten rows two validate: over many seeds each of them about equally often."""
    counts = np.zeros(10)
    for seed in range(500):
        counts[bl.split(np.arange(10), seed=seed)[0].validation] += 1
    assert counts.sum() == 1000
    assert np.all(np.abs(counts - 100) < 5 * np.sqrt(500 * 0.2 * 0.8))  # five standard deviations


# ------------------------------------------------------------------ what it takes


def test_a_share_of_zero_leaves_a_part_out():
    [task] = bl.split(np.arange(10), selection=0, test=0, validation=0.3)
    assert (task.selection, task.test) == (None, None)
    assert (len(task.train), len(task.validation)) == (7, 3)


def test_shares_are_what_they_are_written_as():
    """0.1 + 0.2 is not 0.3 in binary: 10 rows are 4, 1, 2 and 3 nonetheless."""
    [task] = bl.split(np.arange(10), validation=0.1, selection=0.2, test=0.3)
    assert [len(part) for part in parts(task).values()] == [4, 1, 2, 3]


def test_pytrees_of_any_arrays_and_options_of_tasks():
    def upper(x, y, batch):
        return jnp.mean(batch["a"]) * x * y

    rows = {"a": jnp.arange(20.0), "b": np.arange(40).reshape(20, 2)}
    [task] = bl.split(rows, "north", upper=upper, lower=upper, y=jnp.zeros(()))
    assert (task.name, task.upper, task.lower) == ("north", upper, upper)
    assert np.array_equal(task.train["b"][:, 0], 2 * np.asarray(task.train["a"]))
    problem = bl.Problem(upper, upper, [task])
    assert problem.has_selection
    assert problem.has_test


def test_labels_may_be_numbers():
    tasks = bl.split(np.arange(30), task=np.repeat([7, 3], 15))
    assert [task.name for task in tasks] == ["7", "3"]


def test_small_tasks_are_named_or_left_out():
    rows, task = np.arange(43), np.repeat(["large", "small"], [40, 3])
    with pytest.raises(ValueError, match=r"task 'small' has 3, and it needs 4, one for each of train, validation, sel"):
        bl.split(rows, task)
    assert [own.name for own in bl.split(rows, task, smallest=4)] == ["large"]
    assert len(bl.split(rows, task, test=0)) == 2
    with pytest.raises(ValueError, match=r"smallest=50\): every task has fewer rows"):
        bl.split(rows, task, smallest=50)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"validation": 0.0}, "it needs a share of validation rows"),
        ({"test": 0.7}, "a sum below 1"),
        ({"test": -0.1}, r"test=-0\.1"),
        ({"seed": -1}, "seed=-1"),
        ({"smallest": 0}, "smallest=0"),
        ({"task": np.arange(3)}, r"split\(task=...\) has shape \(3,\): it needs one label for each of the 10 rows"),
        ({"stratify": np.zeros((10, 2))}, r"split\(stratify=...\) has shape \(10, 2\)"),
        ({"stratify": np.array([np.nan] * 10)}, "a row without a label"),
        ({"task": np.array(["a", None] * 5, object)}, "a row without a label"),
        ({"rows": (np.zeros(10), np.zeros(9))}, r"got \{'rows\[0\]': 10, 'rows\[1\]': 9\}"),
        ({"rows": [1.0, 2.0]}, r"'rows\[0\]': 0"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        bl.split(**{"rows": np.arange(10)} | options)
