"""Metrics: what is measured beside the losses is what the function gives on the rows, everywhere it is shown."""

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run.loggers.base import Logger
from kept_runs import NOISY, SINGLE_LEVEL, STACK, X, bits, same, solve
from ulp import assert_ulp


def near(x, y, batch):
    """The share of rows within 1 of y, a number that no loss has."""
    return jnp.mean((jnp.abs(batch - y) < 1).astype(float))


def shift(x, y, batch):
    return jnp.mean(batch) + x


METRICS = {"near": near, "shift": shift}
NAMES = ["validation near", "test near", "validation shift", "test shift"]


def by_hand(function, rows, x, y):
    return np.array([function(x, y[name], own) for name, own in zip(STACK.names, rows, strict=True)])


def test_every_metric_is_that_of_all_rows_of_each_task_at_every_evaluation(tmp_path):
    seen = []
    result = solve(metrics=METRICS, callback=seen.append)
    assert list(result.history.metrics) == NAMES
    for name, iterate in (("last", result.last), ("best", result.best), ("random", result.random)):
        for metric, function in METRICS.items():
            for role in ("validation", "test"):
                expected = by_hand(function, getattr(STACK, role), iterate.x, iterate.y)
                np.testing.assert_allclose(iterate.metrics[f"{role} {metric}"], expected, rtol=1e-12, err_msg=name)
    for row, k in zip(seen, range(1, 4), strict=True):
        for name in NAMES:
            np.testing.assert_array_equal(row[name], result.history[name][k])
        np.testing.assert_allclose(
            row["validation near"], by_hand(near, STACK.validation, row["x"], row["y"]), rtol=1e-12
        )


def test_they_change_nothing_in_the_run():
    plain, measured = bits(solve()), bits(solve(metrics=METRICS))
    for one, other in zip(plain[0], measured[0], strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        assert_ulp(one[3], other[3])  # evaluated by another program


def test_they_are_in_the_summary_the_table_the_picture_and_the_file(tmp_path):
    result = solve(metrics=METRICS)
    result.save(tmp_path / "r")
    loaded = bl.load(tmp_path / "r")
    for one in (result, loaded):
        own = one.last.metrics["test near"]
        assert f"test near: mean {own.mean():.5g}, from {own.min():.5g} (" in one.summary()
        table = one.to_dataframe()
        for name in NAMES:
            np.testing.assert_array_equal(table[name], np.ravel(result.history[name]))
            np.testing.assert_array_equal(one.average.metrics[name], result.average.metrics[name])
        axes = one.plot().axes
        assert [panel.get_label() for panel in axes] == ["losses", "weights", "metrics", "tasks"]
        drawn = {line.get_label(): line.get_ydata() for line in axes[2].lines}
        for name in NAMES:
            np.testing.assert_allclose(drawn[name], result.history[name].mean(axis=1))
    assert loaded.summary() == result.summary()


class Kept(Logger):
    def __init__(self):
        self.rows = []

    def log(self, row):
        self.rows.append(row)


def test_loggers_get_them():
    kept = Kept()
    result = solve(metrics=METRICS, loggers=[kept])
    for k, row in enumerate(kept.rows):
        own = result.history["test near"][k]
        np.testing.assert_array_equal(row.metrics["test near"], own)
        found = row.scalars()
        assert [found[f"test near/{what}"] for what in ("smallest", "largest")] == [own.min(), own.max()]
        assert found["test near/task/east"] == own[1]


def test_a_resumed_run_has_them_all_and_another_metric_is_another_run(tmp_path):
    calls = []

    def fail(row):
        calls.append(row["step"])
        if len(calls) == 2:
            raise OSError("full")

    with pytest.warns(RuntimeWarning, match="full"):
        solve(metrics=METRICS, checkpoint=tmp_path, callback=fail)
    with pytest.raises(ValueError, match="another run: it has metrics="):
        solve(metrics={"near": near}, checkpoint=tmp_path, resume=True)
    again, whole = solve(metrics=METRICS, checkpoint=tmp_path, resume=True), solve(metrics=METRICS)
    assert same(again, whole)
    for name in NAMES:
        np.testing.assert_array_equal(again.history[name], whole.history[name])
        np.testing.assert_array_equal(again.best.metrics[name], whole.best.metrics[name])


def test_ragged_tasks_and_seeds():
    rows = [np.arange(3.0), np.arange(5.0)]
    tasks = [bl.Task(own, own, name=str(len(own)), y=np.array(0.0)) for own in rows]
    problem = bl.Problem(NOISY.groups[0].upper, NOISY.groups[0].lower, tasks)
    for result in bl.solve(problem, bl.MORBiT(0.1, 0.1), X, steps=4, seeds=2, metrics={"near": near}, progress=False):
        assert list(result.history.metrics) == ["validation near"]
        expected = [near(None, result.y[str(len(own))], own) for own in rows]
        np.testing.assert_allclose(result.last.metrics["validation near"], expected)


@pytest.mark.parametrize(
    ("metrics", "error", "said"),
    [
        ([near], TypeError, "dict of functions by name"),
        ({"near": 3}, TypeError, r"\{'near': \.\.\.\}\) got 3: it needs a function"),
        ({"a/b": near}, ValueError, "got the name 'a/b'"),
        ({"near": lambda x, y, batch: batch}, ValueError, r"'near' of .* must return one floating-point number"),
        ({"near": lambda x, y, batch: batch["colour"]}, ValueError, "'near' of .* fails"),
    ],
    ids=["a list", "no function", "a name", "rows", "fails"],
)
def test_metrics_that_make_no_sense_are_refused_before_the_run(metrics, error, said):
    with pytest.raises(error, match=said):
        solve(metrics=metrics)


def test_other_kinds_of_problems_have_none():
    with pytest.raises(TypeError, match=r"metrics=.*bl\.Problem, and this is a bl\.MinMaxProblem"):
        bl.solve(SINGLE_LEVEL.problem, bl.GDA(0.1), SINGLE_LEVEL.x, steps=1, metrics=METRICS)
