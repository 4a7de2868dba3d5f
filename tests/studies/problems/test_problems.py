"""Ready problems: what they refuse, by the name of the argument, before anything is computed."""

import re

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel.problem.initial_point import lower_points
from bilevel.studies.problems import (
    area_under_curve,
    auc,
    hyperparameters,
    multitask,
    random_quadratics,
    representation,
)

SIGNS = np.array([1.0, -1.0, 1.0, -1.0])
ROWS = (np.ones((4, 3)), SIGNS)
TASK = bl.Task(ROWS, ROWS)
STACK = bl.Task.stack(train=(np.ones((2, 4, 3)), np.ones((2, 4))), validation=(np.ones((2, 4, 3)), np.ones((2, 4))))
BARE = bl.Task(np.ones((4, 3)), np.ones((4, 3)))  # no targets


@pytest.mark.parametrize("make", [representation, hyperparameters, auc, multitask])
def test_tasks_that_are_none(make):
    name = make.__name__
    with pytest.raises(ValueError, match=re.escape(f"{name}(tasks=...) got no tasks: it needs at least one.")):
        make([])
    with pytest.raises(TypeError, match=re.escape(f"{name}(tasks=...) got int: it needs a sequence of bl.Task.")):
        make(3)
    with pytest.raises(TypeError, match=re.escape(f"{name}(tasks=...) got int: it needs bl.Task")):
        make([TASK, 3])
    with pytest.raises(TypeError, match=re.escape(f"{name}(tasks=...) got training rows of type ndarray")):
        make([BARE])


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda: representation(TASK, layers=(3,)), ValueError, "representation(layers=(3,)): it needs two or more"),
        (lambda: representation(TASK, layers=3), ValueError, "representation(layers=3): it needs two or more sizes"),
        (lambda: representation(TASK, layers=(3, 0)), ValueError, "representation(layers=(3, 0)): it needs two or"),
        (
            lambda: representation(TASK),
            ValueError,
            "representation(layers=(784, 100)): a row of inputs has shape (3,), so it needs 3 first.",
        ),
        (
            lambda: representation(bl.Task((np.ones((4, 28, 28)), SIGNS), ROWS)),
            ValueError,
            "a row of inputs has shape (28, 28), so it needs rows of numbers; flatten them",
        ),
        (lambda: representation(TASK, (3, 2), ridge=-1.0), ValueError, "representation(ridge=-1.0): it needs a finite"),
        (lambda: representation(TASK, (3, 2), outputs=0), ValueError, "representation(outputs=0): it needs a whole"),
        (
            lambda: representation(TASK, (3, 2), loss=3),
            TypeError,
            "representation(loss=...) got 3: it needs a",
        ),
        (lambda: hyperparameters(TASK, frequencies=0), ValueError, "hyperparameters(frequencies=0): it needs"),
        (lambda: hyperparameters(TASK, penalty=-1.0), ValueError, "hyperparameters(penalty=-1.0): it needs a finite"),
        (lambda: hyperparameters(TASK, bandwidth=np.nan), ValueError, "hyperparameters(bandwidth=nan): it needs"),
        (lambda: hyperparameters([STACK]), TypeError, "hyperparameters(tasks=...) got TaskStack: it needs bl.Task"),
        (
            lambda: hyperparameters(bl.Task(([[1.0, 2.0]], [1.0]), ROWS)),
            ValueError,
            "got training points of type list and shape (1, 2): it needs an array",
        ),
        (lambda: auc(TASK, features=0), ValueError, "auc(features=0): it needs a whole number"),
        (lambda: auc(TASK, reach=-1.0), ValueError, "auc(reach=-1.0): it needs a finite number, 0 or more."),
        (lambda: multitask(TASK, penalty=-1.0), ValueError, "multitask(penalty=-1.0): it needs a finite number"),
        (lambda: multitask(TASK, error=None), TypeError, "multitask(error=...) got None: it needs a function"),
        (lambda: random_quadratics(0, tasks=0), ValueError, "random_quadratics(tasks=0): it needs a whole number"),
        (
            lambda: random_quadratics(0, x_size=9),
            ValueError,
            "(y_size=8): it needs at least x_size, 9.",
        ),
        (lambda: random_quadratics(0, lower_condition=0.5), ValueError, "(lower_condition=0.5): it needs a finite"),
        (lambda: random_quadratics(0, x_scale=0), ValueError, "random_quadratics(x_scale=0): it needs a positive"),
        (lambda: area_under_curve([1.0, 2.0], [1, 1]), ValueError, "2 positive of 2 signs: it needs one score for"),
    ],
)
def test_numbers_that_are_none(call, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        call()


def test_one_task_may_come_without_a_list():
    classes = bl.Task(*[(points, np.array([0, 1, 0, 1])) for points, _ in (TASK.train, TASK.validation)])
    assert representation(classes, (3, 2), lower_batch=2, upper_batch=2).problem.size == 1


def test_multitask_takes_stacks():
    ready = multitask([STACK, TASK])
    assert ready.problem.size == 3
    assert ready.x["w"].shape == (3,)
    assert ready.x["w"].dtype == jnp.asarray(STACK.train[0]).dtype


@pytest.mark.parametrize("make", [hyperparameters, auc, multitask])
@pytest.mark.parametrize("role", ["train", "validation", "test"])
def test_labels_that_are_not_signs(make, role):
    """With labels 0 and 1 the rows of label 0 would have a constant logistic loss. The last task is checked too."""
    zeros = bl.Task(**{"train": ROWS, "validation": ROWS, "test": ROWS, role: (ROWS[0], (SIGNS + 1) / 2)}, name="zeros")
    said = f"{make.__name__}(tasks=...): task 'zeros' has the {role} label 0; it needs labels -1 and 1."
    with pytest.raises(ValueError, match=re.escape(said)):
        make([TASK, zeros])
    eight = tuple(np.concatenate([a, a]) for a in ROWS)  # rows enough for the default batches
    assert make([bl.Task(eight, eight)]).problem.size == 1


def test_multitask_takes_any_targets_with_another_error():
    task = bl.Task((ROWS[0], 3 * SIGNS), (ROWS[0], 3 * SIGNS))
    assert multitask(task, error=optax.squared_error).problem.size == 1
    with pytest.raises(ValueError, match=re.escape("multitask(tasks=...): task 0 has the train label 3; it needs")):
        multitask(task)


@pytest.mark.parametrize("make", [lambda: random_quadratics(0, tasks=2), lambda: hyperparameters(TASK, 4, 2, 2)])
def test_ready_problems_are_a_problem_and_a_start(make):
    ready = make()
    assert isinstance(ready, bl.problems.Ready)
    problem, x = ready
    losses = problem.validation_losses(x, lower_points(problem, None, None))
    assert losses.shape == (problem.size,)


@pytest.mark.parametrize(
    ("labels", "said"),
    [([-1, 1], "label -1"), ([1, 2], "label 2"), ([0.0, 1.0], "label dtype float")],
    ids=["signs", "from 1", "floats"],
)
def test_labels_that_are_no_classes_are_refused(labels, said):
    """Signs would all be class 1 of two: the loss would fall, and mean nothing."""
    inputs = np.zeros((4, 3), np.float32)
    right, wrong = (inputs, np.array([0, 1, 0, 1])), (inputs, np.array(labels * 2))
    with pytest.raises(ValueError, match=rf"representation\(tasks=...\): task 'b' has the validation {said}.*0 to 1"):
        bl.problems.representation([bl.Task(right, right, name="a"), bl.Task(right, wrong, name="b")], (3, 2))


def test_labels_0_and_1_are_refused_where_signs_are_meant():
    rows = (np.zeros((4, 3)), np.array([0.0, 1.0, 0.0, 1.0]))
    for make in (bl.problems.hyperparameters, bl.problems.multitask, bl.problems.auc):
        with pytest.raises(ValueError, match=r"has the train label 0; it needs labels -1 and 1"):
            make([bl.Task(rows, rows)])
