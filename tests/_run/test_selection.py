"""Rows for selection: x never sees them, the best iterate and patience go by them, and they are told everywhere."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import loop
from kept_runs import NOISY, SOLVERS, STACK, X, Y, bits, lower, same, solve, upper
from ulp import assert_ulp

ROWS = np.random.default_rng(1).normal(size=(3, 7)) + 1.0
SELECTED = bl.Problem(upper, lower, dataclasses.replace(STACK, selection=ROWS), lower_batch=2, upper_batch=2)


def by_hand(iterate, rows=ROWS):
    return np.array([upper(iterate.x, iterate.y[name], own) for name, own in zip(STACK.names, rows, strict=True)])


# ------------------------------------------------------------------ a run


@pytest.mark.parametrize("solver", ["MORBiT", "Tandem", "SABA", "SPABA", "STABLE"])
def test_they_change_nothing_in_the_run(solver):
    """Not even its program: what is not used is no argument of it."""
    plain, selected = solve(solver), solve(solver, problem=SELECTED)
    key, chosen = jax.random.key(0), SOLVERS[solver]
    texts = []
    for problem in (NOISY, SELECTED):
        state = chosen.init(problem, X, Y, key=key, steps=60)
        carry = loop.first(chosen, problem, state, key)
        texts.append(loop.steps.lower(chosen, problem, carry, key, 5, 5).as_text())
    assert texts[0] == texts[1]
    for name in ("last", "random", "average"):
        one, other = getattr(plain, name), getattr(selected, name)
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.weights, other.weights)
        for task in STACK.names:
            np.testing.assert_array_equal(one.y[task], other.y[task])
        assert_ulp(one.losses, other.losses)  # evaluated by another program


def test_a_step_of_some_tasks_sees_no_rows_that_are_held_out():
    chosen = SELECTED.groups[0].chosen(jnp.array([2, 0]))
    assert (chosen.selection, chosen.test, chosen.size) == (None, None, 2)


def test_their_losses_are_f_on_all_of_them():
    result = solve(problem=SELECTED)
    for name in ("last", "best", "random", "average"):
        iterate = getattr(result, name)
        np.testing.assert_allclose(iterate.selection_losses, by_hand(iterate), rtol=1e-12)
        assert iterate.selection_worst == iterate.selection_losses.max()
        np.testing.assert_allclose(iterate.selection_mean, iterate.selection_losses.mean(), rtol=1e-12)
    np.testing.assert_array_equal(result.selection_losses, result.history.selection[-1])


def test_the_best_iterate_has_the_lowest_worst_selection_loss():
    result = solve(problem=SELECTED, every=1)
    worst = result.history.selection.max(axis=1)
    at = int(worst.argmin())
    assert at != result.history.worst.argmin()  # by validation rows it would be another
    np.testing.assert_array_equal(result.best.selection_losses, result.history.selection[at])
    np.testing.assert_array_equal(result.best.losses, result.history.validation[at])
    assert (result.best_by, solve().best_by) == ("selection", "validation")


def test_without_them_the_best_has_the_lowest_worst_validation_loss():
    result = solve(every=1)
    assert result.best.worst == result.history.worst.min()
    assert result.selection_losses is result.history.selection is result.best.selection_worst is None


def distance(x, y, batch):
    return jnp.mean((x - batch) ** 2)


def toward(x, y, batch):
    return jnp.mean((y - x) ** 2)


def test_patience_counts_from_the_lowest_worst_selection_loss():
    """x goes from 4 to 0 by the validation rows; the selection rows are at 2, which it passes."""
    rows = {"train": jnp.zeros(1), "validation": jnp.zeros(1), "selection": jnp.full(1, 2.0)}
    solver = bl.MORBiT(0.05, 0.5)
    options = {"x": jnp.array(4.0), "y": jnp.array(0.0), "steps": 200, "every": 1, "progress": False}
    whole = bl.solve(bl.Problem(distance, toward, [bl.Task(**rows)]), solver, **options)
    result = bl.solve(bl.Problem(distance, toward, [bl.Task(**rows)]), solver, patience=4, **options)
    at = int(whole.history.selection.max(axis=1).argmin())
    assert 0 < at < 190
    assert np.all(np.diff(whole.history.worst) < 0)  # by validation rows it would never stop
    assert (result.status, result.steps) == ("stopped early", at + 4)
    assert result.message == "Stopped because there was no improvement in 4 evaluations of the worst selection loss."
    np.testing.assert_array_equal(result.best.x, whole.best.x)
    assert abs(float(result.best.x) - 2) < abs(float(result.x) - 2)


def unknown_above_3(x, y, batch):
    return jnp.mean((x - batch) ** 2 * jnp.where((batch > 1) & (x > 3), jnp.nan, 1.0))


def test_nan_is_worse_than_any_loss():
    """x goes from 4 to 0, and the losses of the selection rows are NaN at first: the best is where they are lowest."""
    task = bl.Task(jnp.zeros(1), jnp.zeros(1), selection=jnp.full(1, 2.0))
    problem = bl.Problem(unknown_above_3, toward, [task])
    options = {"steps": 40, "every": 1, "progress": False}
    result = bl.solve(problem, bl.MORBiT(0.05, 0.5), jnp.array(4.0), jnp.array(0.0), **options)
    losses = result.history.selection[:, 0]
    assert np.isnan(losses[0])
    assert result.best.selection_worst == np.nanmin(losses)


# ------------------------------------------------------------------ where it is told


def test_the_summary_has_their_columns_and_says_what_the_best_was_chosen_by(tmp_path):
    selected, plain = solve(problem=SELECTED), solve()
    for result, worst in ((selected, "selection worst"), (plain, None)):
        head = next(line for line in result.summary().splitlines() if line.startswith("iterate"))
        assert ("selection" in head) == (worst is not None)
        assert head.endswith("worst task  worst test task")
        result.save(tmp_path / "r")
        assert bl.load(tmp_path / "r").summary() == result.summary()
        assert bl.load(tmp_path / "r").best_by == result.best_by
    best = next(line for line in selected.summary().splitlines() if line.startswith("best "))
    for number in (selected.best.selection_worst, selected.best.selection_mean, selected.best.test_worst):
        assert f" {number:.5g} " in best
    assert best.endswith(f"  {selected.best.test_worst_task}")
    assert "best has the lowest worst selection loss of 4 evaluations, on rows that x never saw." in selected.summary()
    assert (
        "best has the lowest worst validation loss of 4 evaluations, on rows that x was fitted to: selection rows, "
        "which bl.split makes, would tell more of new rows."
    ) in plain.summary()


def test_the_worst_test_task_is_that_of_test_rows():
    last = solve(problem=SELECTED).last
    assert last.test_worst_task == STACK.names[int(np.argmax(last.test_losses))]


def test_callbacks_tables_and_several_runs_have_them():
    seen = []
    result = solve(problem=SELECTED, callback=seen.append)
    np.testing.assert_array_equal([row["selection"] for row in seen], result.history.selection[1:])
    table = result.to_dataframe()
    assert list(table.columns[:6]) == ["step", "seconds", "task", "validation", "selection", "test"]
    np.testing.assert_array_equal(table["selection"], result.history.selection.ravel())
    assert "selection" not in solve().to_dataframe()
    runs = solve(problem=SELECTED, seeds=2)
    np.testing.assert_array_equal(runs.selection_worst, [run.last.selection_worst for run in runs])
    assert f"selection mean  {runs.selection_mean.mean():>10.5g}" in runs.summary()


def test_metrics_are_measured_on_them():
    near = lambda x, y, batch: jnp.mean((jnp.abs(batch - y) < 1).astype(float))  # noqa: E731
    result = solve(problem=SELECTED, metrics={"near": near})
    assert list(result.history.metrics) == ["validation near", "selection near", "test near"]
    expected = [near(result.x, result.y[name], own) for name, own in zip(STACK.names, ROWS, strict=True)]
    np.testing.assert_allclose(result.last.metrics["selection near"], expected, rtol=1e-12)


def test_loggers_get_them(tmp_path):
    result = solve(problem=SELECTED, loggers=[bl.loggers.Progress(tmp_path / "p")])
    lines = [json.loads(line) for line in (tmp_path / "p").read_text().splitlines()]
    told = [line for line in lines if line["event"] == "evaluation"]
    assert [line["selection/worst"] for line in told] == result.history.selection.max(axis=1).tolist()
    for i, name in enumerate(STACK.names):
        assert told[-1]["tasks"][name]["selection"] == result.history.selection[-1, i]


def test_a_picture_has_their_curve():
    result = solve(problem=SELECTED)
    losses = result.plot().axes[0]
    [curve] = [line for line in losses.lines if line.get_label() == "worst (selection)"]
    np.testing.assert_array_equal(curve.get_ydata(), result.history.selection.max(axis=1))
    assert curve.get_linestyle() == ":"
    assert all(line.get_label() != "worst (selection)" for line in solve().plot().axes[0].lines)


# ------------------------------------------------------------------ files


def test_a_run_with_them_is_resumed_bit_for_bit(tmp_path):
    stop = lambda row: row["step"] == 20  # noqa: E731
    with pytest.warns(RuntimeWarning, match="The callback raised"):
        solve(problem=SELECTED, checkpoint=tmp_path / "run", callback=lambda row: 1 / (not stop(row)))
    again = solve(problem=SELECTED, checkpoint=tmp_path / "run", resume=True)
    whole = solve(problem=SELECTED)
    assert same(again, whole)
    np.testing.assert_array_equal(again.history.selection, whole.history.selection)
    np.testing.assert_array_equal(again.best.selection_losses, whole.best.selection_losses)


def test_runs_without_them_keep_the_files_of_before(tmp_path):
    """No array of a state or a result has a new name, so that those of earlier versions are read too."""
    solve(checkpoint=tmp_path / "run")
    for file in (tmp_path / "run").glob("*.safetensors"):
        assert b"selection" not in file.read_bytes().partition(b'"__metadata__"')[0]


def test_other_rows_for_selection_are_another_run(tmp_path):
    solve(problem=SELECTED, checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="another run"):
        solve(checkpoint=tmp_path / "run", resume=True)
    assert bits(solve(problem=SELECTED, checkpoint=tmp_path / "run", resume=True))[2] == "finished"


def test_a_run_that_loses_ground_goes_back_to_its_lowest_objective_whatever_selection_rows_say():
    """Selection rows prefer the start. The run learns until a rate that jumps throws it off."""
    rows = lambda value: jnp.full(4, value)  # noqa: E731
    loss = lambda x, y, batch: jnp.mean((y - batch) ** 2)  # noqa: E731
    fit = lambda x, y, batch: jnp.mean((y - x - batch) ** 2)  # noqa: E731
    tasks = [bl.Task(rows(0.0), rows(v), selection=rows(-1.0), name=f"{v}") for v in (1.0, 1.2)]
    rate = lambda k: jnp.where(k < 80, 0.05, 2.5)  # noqa: E731
    solver = bl.MORBiT(rate, 0.4, bl.hypergradients.Exact(), bl.weightings.SimplexAscent(0.05))
    policy = bl.divergence.SmallerRates(0.5, tries=1)
    zero = jnp.zeros(())
    problem = bl.Problem(loss, fit, tasks)
    result = bl.solve(problem, solver, zero, zero, steps=200, on_divergence=policy, progress=False)
    assert result.best_by == "selection"
    assert float(result.best.x) == 0.0  # the start
    assert result.divergences[0].quantity == "objective"
    assert 20 <= result.divergences[0].back_to <= 80
