"""Solvers given to a comparison as objects run as they are given."""

import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._core.module import leaf
from bilevel.studies.catalogue import GivenRates, rates_of, with_rates
from bilevel.studies.comparison.runner import Grid, label, tunable, tuned_on

SMALL = Grid((1e-2, 1e-1), (1e-1,), (1e-3,))


def test_only_rates_that_are_none_are_tuned():
    average, given = bl.weightings.Average(), bl.weightings.SimplexAscent(0.5)
    assert list(tuned_on(SMALL, bl.MORBiT())) == ["0.01 0.1 0.001", "0.1 0.1 0.001"]
    assert list(tuned_on(SMALL, bl.MORBiT(weighting=average))) == ["0.01 0.1 -", "0.1 0.1 -"]
    assert list(tuned_on(SMALL, bl.MORBiT(0.2, weighting=given))) == ["0.2 0.1 0.5"]
    watched = bl.weightings.Watched(1, bl.weightings.CVaR(0.5))
    assert list(tuned_on(SMALL, bl.MORBiT(lambda step: 0.1, 0.3, weighting=watched))) == ["schedule 0.3 0.001"]
    own = bl.MORBiT(0.2, 0.3, bl.hypergradients.Tracked(0.7), given)
    assert tuned_on(SMALL, own) == {"0.2 0.3 0.5": own}
    tracked = bl.MORBiT(0.2, hypergradient=bl.hypergradients.Tracked(0.7), weighting=given)
    assert rates_of(tuned_on(SMALL, tracked)["0.2 0.1 0.5"]) == (0.2, 0.1, 0.5, 0.7)


def repr_of_runs(out):
    return {json.loads(file.read_text())["solver"] for file in out.rglob("settings.json")}


def test_a_given_weighting_and_given_rates_are_kept(slopes, tmp_path):
    solver = bl.MORBiT(0.05, 0.3, bl.hypergradients.Tracked(0.3), bl.weightings.CVaR(0.5, lr=0.01))
    found = bl.compare(*slopes, solvers={"mine": solver}, calls=40, seeds=1, out=tmp_path, progress=False)
    assert [(c.name, c.rates) for c in found.candidates] == [("mine", "as given")]
    assert repr_of_runs(tmp_path) == {repr(solver)}


def test_a_min_max_problem_is_compared_with_given_rates():
    known = bl.problems.reduced_ball()
    solver = bl.GDA(0.1, bl.weightings.SimplexAscent(0.05))
    options = {"solvers": {"GDA": solver}, "seeds": 1, "progress": False}
    found = bl.compare(known.problem, known.x, **options)
    (candidate,) = found.candidates
    assert (candidate.rates, candidate.steps) == ("as given", 1000)
    run = bl.solve(known.problem, solver, known.x, steps=1000, every=20, progress=False)
    np.testing.assert_allclose(candidate.runs[0]["worst_validation"], run.history.validation.max(axis=1))
    assert np.isnan(found.table()[0]["calls_per_step"])
    assert "GDA" in found.summary()
    found.plot()
    with pytest.raises(ValueError, match=r"calls=100\): calls are counted on a bl.Problem, not on a MinMaxProblem"):
        bl.compare(known.problem, known.x, **options, calls=100)
    with pytest.raises(ValueError, match="names 'GDA', which chooses no rates"):
        bl.compare(known.problem, known.x, **options, automatic=["GDA"])


@bl.part
class Descent(bl.Solver):
    """Gradient descent of x on the mean upper loss with y held: a solver without any of our options."""

    pace: float = leaf(default=0.1)

    def start(self, problem, x, y, key, steps):
        return bl.State(jnp.zeros((), int), x, y, jnp.full(problem.size, 1 / problem.size))

    def step(self, problem, state, key):
        losses, slope = jax.value_and_grad(lambda x: jnp.sum(x**2))(state.x)
        info = bl.Info.of(jnp.full(problem.size, losses), jnp.linalg.norm(slope))
        return state._replace(step=state.step + 1, x=state.x - self.pace * slope), info


def test_a_solver_of_the_user_s_own_runs_as_it_is(slopes):
    solver = Descent()
    assert not any(tunable(solver))
    assert label(solver) == "as given"
    assert with_rates(solver, GivenRates(1.0, 1.0, 1.0, 1.0)) is solver
    found = bl.compare(*slopes, solvers={"mine": solver}, seconds=1e-9, seeds=2, progress=False)
    (candidate,) = found.candidates
    assert (candidate.name, candidate.rates, list(candidate.runs)) == ("mine", "as given", [0, 1])


def test_without_a_folder_nothing_is_written(slopes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bilevel._core.files.write_whole", None)
    monkeypatch.setattr("tempfile.mkdtemp", None)
    solver = bl.MORBiT(0.05, 0.3, bl.hypergradients.Tracked(0.3), bl.weightings.SimplexAscent(0.01))
    found = bl.compare(*slopes, solvers={"mine": solver}, calls=40, seeds=2, progress=False)
    assert list(found.candidates[0].runs) == [0, 1]
    assert list(tmp_path.iterdir()) == []


def test_warnings_of_the_user_are_shown_after_a_comparison(slopes):
    filters = list(warnings.filters)
    solver = bl.MORBiT(1e30, 0.3, bl.hypergradients.Tracked(0.3), bl.weightings.SimplexAscent(0.01))
    found = bl.compare(*slopes, solvers={"mine": solver}, calls=40, seeds=1, progress=False)
    assert found.candidates[0].diverged.all()
    assert warnings.filters == filters
