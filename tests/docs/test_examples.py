"""Every example runs, and what it says of min-max against min-avg is so."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import bilevel as bl

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
AVERAGE, ROBUST = bl.weightings.Average(), bl.weightings.SimplexAscent()


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_guide_has_a_line_for_every_example():
    linked = re.findall(r"\]\(\.\./examples/(\w+)\.py\)", (ROOT / "docs" / "guide.md").read_text())
    assert sorted(linked) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow
def test_the_enclosing_ball(capsys):
    example("enclosing_ball").main()
    average, robust, known = capsys.readouterr().out.splitlines()
    assert "x = (1.7500, 1.2500)" in average
    assert "x = (2.0000, 1.0000)" in robust
    assert "x = (2.0000, 1.0000)" in known


@pytest.mark.slow
def test_the_plan_for_the_worst_storm_levels_those_that_bind():
    plan = example("scenario_planning").plan
    average, robust = plan(AVERAGE), plan(ROBUST)
    assert {y.shape for y in robust.y.values()} == {(3, 2), (3, 3), (3, 4)}
    for result in (average, robust):
        assert np.all(np.asarray(result.x) >= 0)
        assert np.sum(result.x) == pytest.approx(10)
        assert all(np.all(np.sum(y, axis=1) < result.x) for y in result.y.values())  # nothing is overdrawn
    assert robust.worst < 0.8 * average.worst
    assert robust.mean > average.mean  # which is what min-avg is for
    binding = np.sort(robust.losses)[-3:]  # a plan for the worst has three decisions, less one for the budget
    np.testing.assert_allclose(binding, robust.worst, rtol=1e-3)


@pytest.mark.slow
def test_a_solver_of_ones_own_conforms_and_comes_near_the_solution(capsys):
    module = example("own_solver")
    module.main()
    assert "passes bl.testing.check_solver" in capsys.readouterr().out
    found = module.compare()
    np.testing.assert_allclose(found["own, min-max"].x, [2, 1], atol=0.1)  # O(1 / strength)
    np.testing.assert_allclose(found["own, min-avg"].x, [1.75, 1.25], atol=0.1)
    assert found["own, min-max"].worst < 0.8 * found["own, min-avg"].worst


@pytest.mark.slow
def test_the_worst_pair_of_digits_does_better_on_test_images():
    average, robust = (losses.max(axis=1).mean() for losses in example("digits").compare().values())
    assert robust < average


@pytest.mark.slow
def test_the_worst_pair_of_letters_does_better_where_x_is_fitted_and_no_worse_elsewhere():
    average, robust = example("letter_hyperparameters").compare().values()
    assert np.all(robust["worst, validation"] < average["worst, validation"])
    assert abs(np.mean(robust["worst, test"] - average["worst, test"])) < 0.03


@pytest.mark.slow
def test_unseen_fast_waves_do_better():
    module = example("meta_learning")
    average, robust = (module.unseen_losses(*module.learn(weighting)) for weighting in (AVERAGE, ROBUST))
    assert np.mean(robust["fast"]) < np.mean(average["fast"])
    assert np.mean(robust["slow"]) > np.mean(average["slow"])  # what it costs
    assert max(map(np.max, robust.values())) < max(map(np.max, average.values()))


@pytest.mark.slow
def test_the_worst_tenth_of_waves_without_end_does_better():
    module = example("endless_tasks")
    average, robust = (module.unseen(module.learn(weighting)) for weighting in (AVERAGE, bl.weightings.CVaR(0.1)))
    assert robust[0] < 0.8 * average[0]
    assert robust[1] > average[1]  # what it costs


@pytest.mark.slow
def test_a_stream_is_learnt_from_with_one_compiled_step():
    module = example("streaming")
    losses = {}
    for name, weighting in (("min-avg", AVERAGE), ("min-max", ROBUST)):
        state, compiled = module.learn(weighting)
        assert compiled == 1
        losses[name] = module.held_out(state)
    assert losses["min-avg"].argmax() == 3
    assert losses["min-max"].max() < 0.7 * losses["min-avg"].max()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flax_network", "equinox_network"])
def test_models_are_handed_over_and_come_back_trained(kind):
    module = example("flax_and_equinox")
    network = getattr(module, kind)()
    average, robust = (module.learn(network, weighting) for weighting in (AVERAGE, ROBUST))
    assert type(robust.x) is type(network)
    worst = {result: np.max(chosen.best.test_losses) for result, chosen in (("avg", average), ("max", robust))}
    assert worst["max"] < 0.35  # which the mean sometimes misses: whether it leaves clinic D behind, rounding decides
    assert worst["max"] < 1.1 * worst["avg"]
