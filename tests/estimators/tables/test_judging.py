"""Rows that are held out, baseline models, and what is said of the difference."""

import numpy as np
import pytest

from bilevel.estimators.tables import baseline_models, fitting, judging
from bilevel.estimators.tables.columns import Outcomes
from bilevel.estimators.tables.judging import MODELS, Outputs
from bilevel.estimators.tables.reading import Coded

RNG = np.random.default_rng(0)


def given(sizes, target):
    codes = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    kind = "classification" if target.dtype.kind == "U" else "regression"
    return Outcomes(kind, target, Coded(codes, [f"t{k}" for k in range(len(sizes))]), np.arange(len(codes)), [])


def test_rows_are_held_out_by_task_and_class_and_a_row_of_each_is_left():
    sizes = [100, 60, 39]
    target = np.where(RNG.random(199) < 0.3, "yes", "no")
    target[5] = "rare"
    found = given(sizes, target)
    held = fitting.held_out(found, 0.2, 40, seed=0)
    counts = np.bincount(found.tasks.codes[held], minlength=3)
    assert abs(counts[0] - 20) <= 1
    assert abs(counts[1] - 12) <= 1
    assert counts[2] == 0
    for task in range(2):
        for label in ("yes", "no"):
            own = (found.tasks.codes == task) & (target == label)
            assert abs(held[own].sum() - 0.2 * own.sum()) <= 1
    assert not held[5]
    assert np.array_equal(held, fitting.held_out(found, 0.2, 40, seed=0))
    assert not np.array_equal(held, fitting.held_out(found, 0.2, 40, seed=1))


# ------------------------------------------------------------------ baseline models


def logistic_rows(count, slopes, seed=0):
    """Tasks with a slope each."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count * len(slopes), 3)).astype(np.float32)
    task = np.repeat(np.arange(len(slopes)), count)
    chance = 1 / (1 + np.exp(-np.asarray(slopes)[task] * X[:, 0]))
    return baseline_models.BaselineRows(X, (rng.random(len(task)) < chance).astype(int), task, 2), chance


def test_one_model_a_task_finds_the_chances_of_each_task():
    train, _ = logistic_rows(4000, [2.0, -2.0])
    test, chance = logistic_rows(500, [2.0, -2.0], seed=1)
    own = baseline_models.one_each(train, test, 2, 0)
    assert np.abs(own[:, 1] - chance).mean() < 0.02
    pooled = baseline_models.pooled(train, test, 2, 0)
    assert np.abs(pooled[:, 1] - 0.5).mean() < 0.03  # slopes that cancel


def test_a_pooled_model_knows_the_task():
    rng = np.random.default_rng(0)
    task = np.repeat([0, 1, 2], 2000)
    target = (rng.random(6000) < np.array([0.1, 0.5, 0.9])[task]).astype(int)
    rows = baseline_models.BaselineRows(rng.normal(size=(6000, 2)).astype(np.float32), target, task, 2)
    found = baseline_models.pooled(rows, rows, 3, 0)
    assert np.allclose([found[task == k, 1].mean() for k in range(3)], [0.1, 0.5, 0.9], atol=0.03)


def test_columns_of_tasks_may_be_sparse(monkeypatch):
    train, _ = logistic_rows(200, [1.0, -1.0, 2.0])
    dense = baseline_models.pooled(train, train, 3, 0)
    monkeypatch.setattr(baseline_models, "DENSE", 0)
    assert np.allclose(baseline_models.pooled(train, train, 3, 0), dense, atol=1e-3)


def test_a_task_of_one_class_says_how_many_rows_it_had():
    target = np.concatenate([np.ones(9, int), np.zeros(9, int), [1]])
    task = np.concatenate([np.zeros(9, int), np.ones(10, int)])
    rows = baseline_models.BaselineRows(np.zeros((19, 1), np.float32), target, task, 2)
    found = baseline_models.one_each(rows, rows, 2, 0)
    assert np.allclose(found[:9], [[(9 / 19) / 10, (9 + 10 / 19) / 10]])
    assert not np.allclose(found[9:], found[0])


def test_a_penalty_is_chosen_by_rows_that_were_not_fitted_to():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 40)).astype(np.float32)
    noise = baseline_models._tuned(X, rng.normal(size=60), 0, 0)
    signal = baseline_models._tuned(X, X[:, 0].astype(float), 0, 0)
    assert noise.alpha == 60 * max(baseline_models.PENALTIES)
    assert signal.alpha == 60 * min(baseline_models.PENALTIES)


# ------------------------------------------------------------------ what is said


def losses(worst_gap, rows=400, tasks=3, noise=1.0, seed=0):
    """Losses in which robust is better by a gap on the worst task, all else alike."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(tasks), rows)
    base = 5 + 5.0 * (task == 1) + noise * rng.normal(size=len(task))
    own = noise * rng.normal(size=(len(MODELS), len(task)))
    found = {model: base + 0.1 * own[k] for k, model in enumerate(MODELS)}
    return found | {"robust": found["robust"] - worst_gap * (task == 1)}, task


NAMES = ["a", "b", "c"]


def test_equal_models_make_no_difference():
    same = np.random.default_rng(0).normal(size=600) + 3
    found = judging.verdict(dict.fromkeys(MODELS, same), np.repeat([0, 1, 2], 200), NAMES, 0)
    assert all(gain == (0, 0, 0) for gain in found.gains.values())
    assert found.answer == "within noise"


@pytest.mark.parametrize(("gap", "answer"), [(0.5, "yes"), (-0.5, "no"), (0.0, "within noise")])
def test_a_difference_is_told_from_noise(gap, answer):
    found = judging.verdict(*losses(gap), NAMES, 0)
    assert found.answer == answer
    assert found.worst_task["robust"] == "b"
    words = {"yes": "was worth it", "no": "was not worth it", "within noise": "made no difference beyond noise"}
    assert f"Robust {words[answer]} here" in found.sentence()
    assert found.against().count("within noise") == 3 * (answer == "within noise")


def test_pairing_counts_what_models_have_in_common_once():
    """The noise that all models share is ten times what a difference of theirs has."""
    found = judging.verdict(*losses(0.05, rows=1000), NAMES, 0)
    gain = found.gains["min-avg"]
    expected = 1.96 * 0.1 * np.sqrt(2 / 1000)  # of a difference of two independent means
    assert (gain.high - gain.low) / 2 == pytest.approx(expected, rel=0.15)


def test_blocks_of_rows_have_the_noise_of_rows(monkeypatch):
    """(draws of blocks) and (draws of rows) agree about the standard error of a mean."""
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(2500, 1))
    deviations = []
    for blocks in (500, 10_000):
        monkeypatch.setattr(judging, "BLOCKS", blocks)
        deviations.append(judging._drawn(rows, np.random.default_rng(1)).std())
    assert np.allclose(deviations, rows.std() / np.sqrt(2500), rtol=0.1)


def test_a_verdict_is_read_back_as_it_was():
    found = judging.verdict(*losses(0.5), NAMES, 0)
    assert judging.verdict_from_json(judging.verdict_as_json(found), "fit.json") == found


def test_scores_are_accuracy_or_r2_by_task():
    task, target = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    outputs = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
    lines = Outputs(target, task, dict.fromkeys(MODELS, outputs)).lines(["a", "b"], np.array([9, 8]), {"a": 0.75})
    assert [(line.task, line.rows, line.held_out, line.scores["robust"], line.weight) for line in lines] == [
        ("a", 9, 2, 0.5, 0.75),
        ("b", 8, 2, 1.0, 0.0),
    ]
    assert lines[0].losses["pooled"] == pytest.approx(-(np.log(0.9) + np.log(0.2)) / 2)
    values = np.array([0.0, 1.0, 3.0, 3.0])
    (first, second) = Outputs(target * 1.0, task, dict.fromkeys(MODELS, values)).lines(["a", "b"], np.array([2, 2]), {})
    assert (second.task, second.losses["robust"], second.scores["robust"]) == ("a", 0, 1)
    assert np.isnan(first.scores["robust"])  # R2 where all targets are equal
