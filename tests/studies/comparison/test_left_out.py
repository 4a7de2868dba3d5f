"""Solvers that cannot be compared are left out with the reason, or refused where they were asked for."""

import jax.numpy as jnp
import pytest

import bilevel as bl
from bilevel.studies.comparison.runner import Grid

SMALL = Grid((1e-2,), (1e-1,), (1e-3,))
SHORT = {"seconds": 1e-9, "seeds": 1, "progress": False}  # one step
DIVERGES = r"it diverges at step \d+ of the 32 on which its calls are counted\."


@bl.part
class Wild(bl.Solver):
    """Descent on |x - 1|^2 whose own choice of the rate is far too large."""

    upper_lr: float | None = bl.leaf(default=None)

    chooses_rates = True

    def start(self, problem, x, y, key, steps):
        return bl.State(jnp.zeros((), int), x, y, jnp.full(problem.size, 1 / problem.size))

    def step(self, problem, state, key):
        rate = 1e30 if self.upper_lr is None else self.upper_lr
        info = bl.Info.of(jnp.full(problem.size, state.x), abs(state.x - 1), upper_rate=rate)
        return state._replace(step=state.step + 1, x=state.x - rate * (state.x - 1)), info


@bl.part
class Runaway(Wild):
    """The same, whatever rate it is given."""

    def step(self, problem, state, key):
        return Wild().step(problem, state, key)


CALM = Wild(upper_lr=0.1)


def test_solvers_that_diverge_while_they_are_counted_are_left_out(slopes, monkeypatch):
    every = {"calm": CALM, "wild": Wild(), "runaway": Runaway()}
    monkeypatch.setattr("bilevel.studies.comparison.benchmarks.all_solvers", lambda: every)
    found = bl.compare(*slopes, grid=None, **SHORT)
    assert [candidate.name for candidate in found.candidates] == ["calm"]
    assert set(found.skipped) == {"wild", "runaway"}
    for name, why in found.skipped.items():
        assert why.startswith("it diverges at step ")
        assert f"{name} cannot run here: {why}" in found.summary()


@pytest.mark.parametrize("grid", [None, SMALL], ids=["as it is", "tuned"])
def test_one_that_was_asked_for_is_an_error(slopes, grid):
    with pytest.raises(ValueError, match=rf"compare\(solvers=\.\.\.\): mine cannot be compared: {DIVERGES}"):
        bl.compare(*slopes, solvers={"calm": CALM, "mine": Runaway()}, grid=grid, **SHORT)


def test_automatic_rates_that_diverge_leave_the_tuned_ones(slopes):
    """The name is that of the recommended solver, whose automatic rates are tried too."""
    solvers = {"MORBiT": Wild()}
    found = bl.compare(*slopes, solvers=solvers, grid=SMALL, **SHORT)
    assert [(candidate.name, candidate.rates) for candidate in found.candidates] == [("MORBiT", "0.01 - -")]
    assert list(found.skipped) == ["MORBiT, automatic"]
    with pytest.raises(ValueError, match=rf"MORBiT, automatic cannot be compared: {DIVERGES}"):
        bl.compare(*slopes, solvers=solvers, grid=SMALL, automatic=["MORBiT"], **SHORT)


def test_no_budget_where_the_recommended_solver_diverges(slopes, monkeypatch):
    monkeypatch.setattr("bilevel.studies.comparison.runner.recommended_for", lambda problem: Wild())
    with pytest.raises(ValueError, match=r"the calls of a run of Wild, which diverges at step \d+: give calls or sec"):
        bl.compare(*slopes, solvers={"calm": CALM}, seeds=1, progress=False)


def test_a_solver_without_calls_has_no_budget_of_them(slopes):
    with pytest.raises(ValueError, match="a step makes no calls that are counted: give seconds"):
        bl.compare(*slopes, solvers={"calm": CALM}, calls=100, seeds=1, progress=False)


@pytest.mark.parametrize("label", ["a/b", "a\\b", "..", ""])
def test_labels_that_cannot_be_folders(slopes, tmp_path, label):
    with pytest.raises(ValueError, match=r"compare\(solvers=\.\.\., out=\.\.\.\).*the name of a folder.*without '/'"):
        bl.compare(*slopes, solvers={label: CALM}, out=tmp_path, **SHORT)
    assert not list(tmp_path.iterdir())
    assert bl.compare(*slopes, solvers={label: CALM}, **SHORT).candidates[0].name == label
