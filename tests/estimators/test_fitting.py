"""Fitted estimators: what does not matter to them, what tasks may be, and what is told."""

import numpy as np
import pytest

from bilevel.estimators import RobustKernelRegressor, RobustRepresentationClassifier, RobustRepresentationRegressor
from bilevel.estimators.heads import Head, TaskRows, penalty_matrix

STEPS = {"max_iter": 12, "random_state": 0}


def classifier(**options):
    return RobustRepresentationClassifier((4,), **STEPS | options)


# ------------------------------------------------------------------ what does not matter


def test_rows_are_a_weighted_set(clinics):
    """In any order, or with rows of weight 2 twice and rows of weight 0 left out: the same numbers."""
    X, value, task = clinics
    y, rng = value > 0, np.random.default_rng(0)
    weight = rng.integers(0, 3, len(y))
    expected = classifier().fit(X, y, task=task, sample_weight=weight).predict_proba(X, task=task)
    order = rng.permutation(np.repeat(np.arange(len(y)), weight))
    found = classifier().fit(X[order], y[order], task=task[order]).predict_proba(X, task=task)
    assert np.array_equal(found, expected)


def test_names_of_tasks_and_classes_do_not_matter(clinics):
    """But for rounding: sums over tasks are in another order."""
    X, value, task = clinics
    first = classifier().fit(X, value > 0, task=task)
    renamed = np.char.add(np.select([task == "north", task == "south"], ["3", "2"], "1"), " street")
    second = classifier().fit(X, np.where(value > 0, "yes", "no"), task=renamed)
    np.testing.assert_allclose(
        second.predict_proba(X, task=renamed), first.predict_proba(X, task=task), rtol=1e-3, atol=1e-5
    )
    assert second.classes_.tolist() == ["no", "yes"]
    assert second.predict(X, task=renamed).tolist() == np.where(first.predict(X, task=task), "yes", "no").tolist()
    pairs = (("north", "3 street"), ("south", "2 street"), ("west", "1 street"))
    for name, other in pairs:
        assert second.task_losses_[other] == pytest.approx(first.task_losses_[name], rel=1e-3)


def test_the_seed_matters(clinics):
    X, value, task = clinics
    first, other = (classifier(random_state=s).fit(X, value > 0, task=task).task_losses_ for s in (0, 1))
    assert first != other


# ------------------------------------------------------------------ what is learnt


def test_weights_and_the_length_are_those_of_the_run(clinics):
    X, value, task = clinics
    model = classifier().fit(X, value > 0, task=task)
    assert list(model.task_losses_) == model.tasks_.tolist() == ["north", "south", "west"]
    assert list(model.result_.y)[::3] == ["north, fold 1 of 2", "north, fold 2 of 2"]
    weights = model.history_.weights.reshape(-1, 2, 3).sum(axis=1)
    assert list(model.task_weights_.values()) in weights.tolist()
    assert model.worst_task_ == max(model.task_losses_, key=model.task_losses_.get)
    assert model.history_ is model.result_.history
    assert model.n_iter_ == model.result_.steps == 12
    assert model.result_.problem is None  # which would hold the rows
    assert model.result_.best_by == "selection"


def test_heads_are_fitted_to_all_rows_of_their_task_and_transform_is_what_they_see(clinics):
    X, value, task = clinics
    model = RobustRepresentationRegressor((4,), **STEPS).fit(X, value, task=task)
    features = model.transform(X)
    for name in model.tasks_:
        own = task == name
        target = (value[own] - model.target_centre_) / model.target_scale_
        A, c = np.column_stack([features[own], np.ones(own.sum())]), model.centre_[:, 0]
        P = penalty_matrix(model.penalty_, c) * model.usual_  # summed over rows: n * usual / n
        y = np.linalg.solve(A.T @ A + P, A.T @ target + P @ c)
        np.testing.assert_allclose(model.heads_[name].weights[:, 0], y[:-1], rtol=1e-5, atol=1e-7)
        expected = model.target_centre_ + model.target_scale_ * (A @ y)
        np.testing.assert_allclose(model.predict(X[own], task=task[own]), expected, rtol=1e-5, atol=1e-6)


def test_columns_are_standardised_by_training_rows_and_a_constant_one_is_harmless(clinics):
    X, value, task = clinics
    X = np.column_stack([X, np.full(len(X), 0.1)])
    part = np.random.default_rng(0).choice(["train", "validation", "selection"], len(X))
    model = classifier().fit(X, value > 0, task=task, part=part)
    np.testing.assert_allclose(model.shared_.centre, X[part == "train"].mean(axis=0))
    np.testing.assert_allclose(model.shared_.scale[:3], X[part == "train", :3].std(axis=0))
    assert model.shared_.scale[3] == 1


def test_other_units_of_columns_and_targets_change_nothing_but_units(clinics):
    X, value, task = clinics
    part = np.random.default_rng(0).choice(["train", "validation", "selection"], len(X))
    first = RobustKernelRegressor(4, **STEPS).fit(X, value, task=task, part=part)
    second = RobustKernelRegressor(4, **STEPS).fit(X * 4.0, value * 8.0, task=task, part=part)
    np.testing.assert_allclose(
        second.predict(X * 4.0, task=task), 8.0 * first.predict(X, task=task), rtol=1e-3, atol=1e-3
    )


# ------------------------------------------------------------------ tasks


def test_tasks_have_the_classes_of_their_own_rows(clinics):
    X, value, task = clinics
    y = np.where(
        task == "west", np.where(value > 0.5, "x", np.where(value > -0.5, "y", "z")), np.where(value > 0, "a", "b")
    )
    model = classifier().fit(X, y, task=task)
    assert model.classes_.tolist() == ["a", "b", "x", "y", "z"]
    assert {name: head.weights.shape for name, head in model.heads_.items()} == {
        "north": (7, 2),  # three columns, and four features of the network
        "south": (7, 2),
        "west": (7, 3),
    }
    found = model.predict_proba(X, task=task)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert np.all(found[task == "west", :2] == 0)
    assert np.all(found[task != "west", 2:] == 0)
    assert set(model.predict(X, task=task)[task == "west"]) <= {"x", "y", "z"}


def test_small_tasks_and_tasks_of_one_class_have_a_head_and_no_say(clinics):
    X, value, task = clinics
    task = task.astype("<U9").copy()
    task[0], task[1:24] = "one row", "one class"
    y = np.where(task == "one class", True, value > 0)
    model = classifier().fit(X, y, task=task)
    assert {name for name, loss in model.task_losses_.items() if np.isnan(loss)} == {"one row", "one class"}
    assert [model.task_weights_[name] for name in ("one row", "one class")] == [0, 0]
    assert model.worst_task_ in ("north", "south", "west")
    centre = Head(model.centre_[:-1], model.centre_[-1], model.classes_).probabilities(model.transform(X))
    found = model.predict_proba(X, task=["one class"] * len(X))
    assert np.all(found[:, 1] > centre[:, 1])  # as the centre, and what 23 rows of one class say
    assert np.all(found < 1)
    near = model.predict_proba(X, task=["one row"] * len(X))
    assert np.max(np.abs(near - centre)) < np.max(np.abs(found - centre))  # one row says less


def test_without_a_centre_a_task_of_one_class_has_the_shares_of_its_classes(clinics):
    X, value, task = clinics
    task = task.astype("<U9").copy()
    task[1:24] = "one class"
    y = np.where(task == "one class", True, value > 0)
    model = classifier(centre=False).fit(X, y, task=task)
    share = np.mean(y)
    expected = [(1 - share) / 24, (23 + share) / 24]
    np.testing.assert_allclose(model.predict_proba(X[:1], task=["one class"])[0], expected)


def test_a_strong_centre_is_one_model_and_a_weak_one_is_a_model_a_task(clinics):
    """The two ends between which strength is learnt."""
    X, value, task = clinics
    model = RobustRepresentationRegressor((4,), **STEPS).fit(X, value, task=task)
    everywhere = [np.repeat(name, len(X)) for name in model.tasks_]
    rows = [
        TaskRows(X[task == n], np.arange(np.sum(task == n)), value[task == n], np.ones(np.sum(task == n)))
        for n in model.tasks_
    ]
    one = [model._own_head(own, 1e9).outputs(model.transform(X)) for own in rows]
    np.testing.assert_allclose(one[0], one[1], atol=1e-4)
    own = [model._own_head(own, 1e-9).outputs(model.transform(X)) for own in rows]
    assert np.max(np.abs(own[0] - own[2])) > 1
    assert len({tuple(model.predict(X, task=names)) for names in everywhere}) == 3


def test_regret_is_told_apart_from_loss(clinics):
    X, value, task = clinics
    model = classifier(weighting="regret").fit(X, value > 0, task=task)
    assert np.any(np.asarray(model.result_.history.weights[-1]) != 0)
    assert "Regret" in model.result_.solver


def test_one_task_needs_no_name(clinics):
    """And three rows are enough, though nothing can be learnt from them but a head."""
    X, value, _ = clinics
    with pytest.warns(UserWarning, match="what tasks share is left as it starts"):
        model = RobustRepresentationRegressor((4,), **STEPS).fit(X[:3], value[:3])
    assert model.tasks_.tolist() == ["all"]
    assert (model.result_, model.history_, model.worst_task_, model.n_iter_) == (None, None, None, 0)
    assert np.array_equal(model.predict(X), model.predict(X, task=["all"] * len(X)))


def test_rows_go_to_the_heads_of_their_tasks(clinics):
    X, value, task = clinics
    model = classifier().fit(X, value > 0, task=task)
    whole = model.predict_proba(X, task=task)
    for name in model.tasks_:
        own = task == name
        np.testing.assert_allclose(model.predict_proba(X[own], task=task[own]), whole[own], rtol=1e-12)
    assert model.score(X, value > 0, task=task) == np.mean(model.predict(X, task=task) == (value > 0))


def test_adapt_adds_a_task_with_what_is_shared_as_it_is(clinics):
    X, value, task = clinics
    model = classifier().fit(X, value > 0, task=task)
    before, shared = model.predict_proba(X, task=task), model.transform(X)
    new = X[task == "west"][:20]
    assert model.adapt(new, new[:, 0] > 0, task="east") is model
    assert model.tasks_.tolist() == ["east", "north", "south", "west"]
    assert np.array_equal(model.predict_proba(X, task=task), before)
    assert np.array_equal(model.transform(X), shared)
    assert model.score(new, new[:, 0] > 0, task=["east"] * 20) > 0.8


def test_adapt_may_bring_classes(clinics):
    X, value, task = clinics
    model = classifier().fit(X, np.where(value > 0, "b", "d"), task=task)
    before = model.predict_proba(X, task=task)
    new = X[:20]
    model.adapt(new, np.where(new[:, 0] > 0, "a", "c"), task="east")
    assert model.classes_.tolist() == ["a", "b", "c", "d"]
    assert np.array_equal(model.predict_proba(X, task=task)[:, [1, 3]], before)
    assert set(model.predict(new, task=["east"] * 20)) == {"a", "c"}
    with pytest.raises(TypeError, match=r"adapt.*labels of type int64, and those so far are of type str"):
        model.adapt(new, np.arange(20) % 2, task="south")


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layers": ()}, r"Classifier\(layers=\(\)\): it needs one or more sizes"),
        ({"layers": (4, 0)}, "it needs one or more sizes"),
        ({"penalty": 0}, r"penalty=0\): it needs a positive number"),
        ({"max_iter": 0}, r"max_iter=0\): it needs a whole number, 1 or more"),
        ({"patience": -1}, "or None = never stop early"),
        ({"batch_size": 2.5}, 'or None = all rows; or "auto"'),
        ({"validation_fraction": 0.5, "selection_fraction": 0.5}, "so a sum below 1"),
        ({"selection_fraction": 0}, "selection_fraction=0.*: it needs a number between 0 and 1"),
        ({"weighting": "worst"}, r"weighting='worst'\): it needs \"min-max\""),
        ({"centre": "yes"}, r"centre='yes'\): it needs True or False"),
        ({"smallest": 0}, r"smallest=0\): it needs a whole number"),
    ],
)
def test_parameters_are_checked_when_it_is_fitted(clinics, options, said):
    X, value, task = clinics
    model = RobustRepresentationClassifier(**options)
    with pytest.raises(ValueError, match=said):
        model.fit(X, value > 0, task=task)


def test_rows_that_cannot_be_used_are_told(clinics):
    X, value, task = clinics
    with pytest.raises(ValueError, match=r"fit\(y=...\) has only one class, 'a': it needs two or more"):
        classifier().fit(X, np.full(len(X), "a"), task=task)
    with pytest.raises(ValueError, match=r"fit\(sample_weight=...\) is zero for all rows|weights? .*zero"):
        classifier().fit(X, value > 0, task=task, sample_weight=np.zeros(len(X)))
    with pytest.raises(ValueError, match=r"fit\(task=...\) has shape \(3,\)"):
        classifier().fit(X, value > 0, task=task[:3])
    with pytest.raises(ValueError, match="NaN"):
        classifier().fit(np.where(X > 1, np.nan, X), value > 0, task=task)


def test_the_average_keeps_all_weights_equal(clinics):
    X, value, task = clinics
    model = RobustKernelRegressor(4, weighting="min-avg", **STEPS).fit(X, value, task=task)
    np.testing.assert_allclose(list(model.task_weights_.values()), 1 / 3, rtol=1e-5)


def test_losses_of_tasks_are_of_heads_that_saw_training_rows_on_selection_rows(clinics):
    X, value, task = clinics
    part = np.random.default_rng(0).choice(["train", "validation", "selection"], len(X))
    model = RobustKernelRegressor(4, centre=False, **STEPS).fit(X, value, task=task, part=part)
    features, target = model.transform(X), (value - model.target_centre_) / model.target_scale_
    for name, loss in model.task_losses_.items():
        train, held = (np.flatnonzero((task == name) & (part == p)) for p in ("train", "selection"))
        A = np.column_stack([features, np.ones(len(X))])
        P = np.diag(model.penalty_[:-1])
        y = np.linalg.solve(A[train].T @ A[train] / len(train) + P, A[train].T @ target[train] / len(train))
        np.testing.assert_allclose(loss, np.mean((A[held] @ y - target[held]) ** 2), rtol=1e-5)
    assert model.worst_task_ == max(model.task_losses_, key=model.task_losses_.get)
