"""Worst regrets beside worst losses: f_i - b_i wherever the weighting of a run, or its user, knows b_i."""

import numpy as np
import pytest

import bilevel as bl
from bilevel.weightings import Average, Ratio, Regret, Watched
from made_runs import made

B = np.array([0.5, 1.8, 0.25])
COUNT = 12
VALIDATION = np.tile([1.0, 2.0, 0.5], (COUNT, 1)) + np.linspace(1, 0, COUNT)[:, None]  # regrets at the end .5, .2, .25
SELECTION, TEST = np.add(VALIDATION, [0.0, 0.5, 0.0]), np.add(VALIDATION, [0.0, 0.0, 0.75])


def run(weighting=None):
    solver = bl.MORBiT(weighting=Regret(B) if weighting is None else weighting)
    return made(VALIDATION, solver=solver, selection=SELECTION, test=TEST)


@pytest.mark.parametrize("weighting", [Regret(B), Regret(bl.Baselines(B)), Ratio(B)], ids=repr)
def test_the_summary_names_the_worst_regret_on_each_kind_of_rows(weighting):
    shown = run(weighting)
    assert shown.baselines.names == ("task 0", "task 1", "task 2")
    lines = shown.summary().splitlines()
    told = "validation 0.5 (task 0); selection 0.7 (task 1); test 1 (task 2)"
    assert [line for line in lines if line.startswith("worst regret")] == [
        f"worst regret, last: {told}",
        f"worst regret, best: {told}",
    ]
    assert shown.worst_task == "task 1"  # by its loss


def test_without_baselines_there_is_no_word_of_regret():
    shown = run(Average())
    assert shown.baselines is None
    assert "regret" not in shown.summary()
    assert "regret" not in bl.Results([shown]).summary()


def test_tasks_without_a_baseline_are_left_out():
    shown = run(Watched(2, Regret(B[:2])))
    assert "validation 0.5 (task 0); selection 0.7 (task 1); test 0.5 (task 0)" in shown.summary()


def test_several_runs_have_the_mean_of_their_worst_regrets():
    runs = [made(VALIDATION + more, solver=bl.MORBiT(weighting=Regret(B))) for more in (0, 1)]
    lines = bl.Results(runs).summary().splitlines()
    assert "worst validation regret 1 ± 0.71, in 2 of 2 runs that of task 0" in lines


def test_baselines_are_kept_in_files(tmp_path):
    shown = run()
    shown.save(tmp_path / "run")
    loaded = bl.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.baselines.values, B)
    assert loaded.baselines.names == shown.baselines.names
    assert loaded.summary() == shown.summary()


# ------------------------------------------------------------------ pictures


def regrets(figure):
    [axes] = [axes for axes in figure.axes if axes.get_label() == "regrets"]
    return {line.get_label(): line for line in axes.lines}


def test_the_panel_of_regrets_has_their_history_and_names_the_worst_task():
    shown = run()
    drawn = regrets(bl.plot(shown))
    expected = {"validation: task 0": VALIDATION, "selection: task 1": SELECTION, "test: task 2": TEST}
    assert drawn.keys() == expected.keys()
    for name, losses in expected.items():
        np.testing.assert_array_equal(drawn[name].get_xdata(), shown.history.step)
        np.testing.assert_allclose(drawn[name].get_ydata(), (losses - B).max(axis=1))
    assert [line.get_linestyle() for line in drawn.values()] == ["-", ":", "--"]


def test_runs_that_know_no_baselines_are_drawn_with_those_of_another():
    figure = bl.plot({"usual": run(Average()), "regret": run()})
    assert [axes.get_label() for axes in figure.axes] == ["worst", "mean", "regrets", "tasks"]
    drawn = regrets(figure)
    assert len(drawn) == 6
    np.testing.assert_allclose(drawn["usual (test)"].get_ydata(), (TEST - B).max(axis=1))


def test_baselines_may_be_given():
    for given in (bl.Baselines(2 * B), 2 * B):
        drawn = regrets(bl.plot(run(Average()), baselines=given))
        np.testing.assert_allclose(drawn["validation: task 0"].get_ydata(), (VALIDATION - 2 * B).max(axis=1))
    with pytest.raises(ValueError, match=r"plot\(baselines=.*\): it needs 3 numbers, one for each task"):
        bl.plot(run(), baselines=[1.0])


def test_other_tasks_have_no_regrets():
    named = bl.Baselines(B, names=("a", "b", "c"))
    figure = bl.plot(run(Average()), baselines=named)
    assert [axes.get_label() for axes in figure.axes] == ["losses", "weights", "tasks"]
