"""The paper's experiments: what is kept, what is run again, what the claims make of it."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.stats

import bilevel as bl
from bilevel._studies.experiment import VARIANTS, Experiment
from bilevel._studies.records import COLUMNS, Record, Records
from bilevel._studies.running import Stage, run
from bilevel._studies.statistics import Interval, interval, slope
from bilevel.paper import claims, figures, reproduce
from command import call

# ------------------------------------------------------------------ statistics


def test_the_interval_is_student_s():
    values = np.random.default_rng(0).normal(2.0, 1.0, 10)
    expected = scipy.stats.t.interval(0.95, 9, values.mean(), scipy.stats.sem(values))
    found = interval(values)
    np.testing.assert_allclose([found.low, found.high], expected)
    assert found.trials == 10
    np.testing.assert_allclose(interval(np.append(values, np.nan)), found)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(-2, -1, "holds"), (-1, 1, "inconclusive"), (1, 2, "does not hold")]
)
def test_the_whole_interval_decides(low, high, verdict):
    assert Interval((low + high) / 2, low, high, 5).below(0) == verdict
    assert Interval((low + high) / 2, low, high, 5).within(-3, 0) == verdict


def test_one_trial_decides_nothing():
    assert interval(np.array([-5.0])).below(0) == "inconclusive"


def test_the_exponent_of_a_power_law():
    x = np.arange(1.0, 50.0)
    assert slope(x, 3 * x**-0.4) == pytest.approx(-0.4)


# ------------------------------------------------------------------ a small experiment


def start(seed, variant):
    tasks = [
        bl.Task(train=np.full((8, 1), c), validation=np.full((8, 1), c), test=np.full((8, 1), c), y=np.zeros(1))
        for c in (seed + 1.0, seed + 3.0)
    ]
    return bl.problems.Ready(bl.Problem(upper, lower, tasks), np.zeros(1))


def upper(x, y, batch):
    return ((x[None] - batch) ** 2).mean() + (y**2).mean()


def lower(x, y, batch):
    return ((y - x) ** 2).mean()


SOLVER = bl.MORBiT(0.1, 0.5, bl.hypergradients.Direct(), bl.weightings.SimplexAscent(0.01))
METHODS = {"min-avg": SOLVER.replace(weighting=bl.weightings.Average()), "min-max": SOLVER}
SMALL = Experiment("small", "two numbers", start, dict.fromkeys(VARIANTS, METHODS), steps=40, evaluations=4)
STAGE = Stage(SMALL, "described")
SEEDS = range(2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    records = Records(tmp_path_factory.mktemp("finished"))
    assert run(STAGE, SEEDS, records, progress=False).runs == 4
    return records


def test_runs_are_kept_as_they_were(finished):
    ready = start(1, "described")
    result = bl.solve(ready.problem, SOLVER, ready.x, steps=40, every=10, seed=1, progress=False)
    kept = finished.read(SMALL, "described", "min-max")[1]
    expected = Record.of(result, None)
    for name in set(COLUMNS) - {"seconds"}:
        np.testing.assert_allclose(kept[name], expected[name], rtol=1e-8)
    assert np.isnan(kept["unseen_worst_test"]).all()


def test_what_is_finished_is_not_run_again(finished):
    files = sorted(finished.folder.rglob("*.csv"))
    before = [file.stat().st_mtime_ns for file in files]
    assert run(STAGE, SEEDS, finished, progress=False).runs == 0
    assert [file.stat().st_mtime_ns for file in files] == before
    assert STAGE.missing(finished, range(3)) == [(2, "min-avg"), (2, "min-max")]


def test_other_settings_are_other_runs(finished):
    longer = Stage(SMALL.shorter(1), "described")
    assert len(longer.missing(finished, SEEDS)) == 4
    assert finished.read(longer.experiment, "described", "min-max") == {}


def test_runs_of_other_settings_lie_beside_each_other(tmp_path, finished):
    record, other = finished.read(SMALL, "described", "min-max")[0], SMALL.shorter(1)
    records = Records(tmp_path)
    for experiment in (SMALL, other, SMALL):
        records.keep(experiment, "described", "min-max", 0, record)
    assert records.has(SMALL, "described", "min-max", 0)
    assert records.has(other, "described", "min-max", 0)


def test_watched_tasks_are_apart():
    seen = bl.weightings.Watched(1, bl.weightings.Average())
    ready = start(0, "described")
    result = bl.solve(ready.problem, SOLVER.replace(weighting=seen), ready.x, steps=5, progress=False)
    record = Record.of(result, 1)
    np.testing.assert_array_equal(record["worst_test"], result.history.test[:, 0])
    np.testing.assert_array_equal(record["unseen_worst_test"], result.history.test[:, 1])


def test_runs_that_end_together_are_all_kept(tmp_path, finished):
    record = finished.read(SMALL, "described", "min-max")[0]
    for trial in range(20):
        records = Records(tmp_path / str(trial))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda seed, r=records: r.keep(SMALL, "described", "min-max", seed, record), range(8)))
        assert list(records.read(SMALL, "described", "min-max")) == list(range(8))


class Interrupted(Records):
    """Ctrl-C after the first run is kept."""

    def keep(self, *arguments):
        super().keep(*arguments)
        raise KeyboardInterrupt


def test_ctrl_c_loses_nothing_that_is_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(STAGE, SEEDS, Interrupted(tmp_path), progress=False)
    records = Records(tmp_path)
    left = len(STAGE.missing(records, SEEDS))
    assert left < 4
    assert run(STAGE, SEEDS, records, progress=False).runs == left
    assert STAGE.missing(records, SEEDS) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from test_reproduce import STAGE, Records, run
moment, folder = sys.argv[1:]
files, replace = [], Path.replace
def replacing(path, target):
    last = target.suffix == ".csv" and len(files) == 1
    if last and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(path, target)
    files.extend([target] * (target.suffix == ".csv"))
    if last:
        os.kill(os.getpid(), signal.SIGKILL)
Path.replace = replacing
run(STAGE, range(2), Records(Path(folder)), False)
"""


@pytest.mark.parametrize(("moment", "kept"), [("before", 1), ("after", 2)])
def test_what_a_killed_process_had_finished_is_there(tmp_path, finished, moment, kept):
    """Killed with the second file written, but not yet, or just now, under its name."""
    where = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__)), *sys.path]
        )
    }
    ran = subprocess.run([sys.executable, "-c", KILLED, moment, str(tmp_path)], env=where, timeout=120, check=False)
    assert ran.returncode == -signal.SIGKILL
    records = Records(tmp_path)
    assert len(STAGE.missing(records, SEEDS)) == 4 - kept
    assert run(STAGE, SEEDS, records, progress=False).runs == 4 - kept
    for method in METHODS:
        for seed in SEEDS:
            ours, theirs = (r.read(SMALL, "described", method)[seed] for r in (records, finished))
            np.testing.assert_allclose(ours["worst_test"], theirs["worst_test"], rtol=1e-5)  # float32 there


# ------------------------------------------------------------------ claims and figures


def made_up(records, better, noise=0.01):
    """Runs in which min-max is better by so much, of every experiment."""
    generator = np.random.default_rng(0)
    for figure in figures.FIGURES.values():
        for experiment in figure.experiments:
            for method in experiment.methods["described"]:
                for seed in range(5):
                    gain = better if method == "min-max" else 0.0
                    values = 1 - gain + noise * generator.normal(size=(20, len(COLUMNS)))
                    columns = dict(zip(COLUMNS, values.T, strict=True)) | {"step": np.linspace(0, 1000, 20)}
                    columns["gradient_norm_squared"] = np.maximum(columns["step"], 1) ** -0.4
                    records.keep(experiment, "described", method, seed, Record(columns))


@pytest.mark.parametrize(("better", "verdict"), [(0.2, "holds"), (-0.2, "does not hold"), (0.0, "inconclusive")])
def test_a_claim_is_as_good_as_its_evidence(tmp_path, better, verdict):
    made_up(Records(tmp_path), better)
    found = {f.claim.text: f.evidence for f in claims.findings(Records(tmp_path)) if f.variant == "described"}
    assert found["min-max lowers the worst test loss (Letter)"].verdict == verdict
    assert found["the squared gradient norm falls like K^-2/5"].verdict == "holds"
    assert found["at fixed K the squared gradient norm grows like sqrt(n)"].verdict == "does not hold"
    assert {f.evidence.verdict for f in claims.findings(Records(tmp_path)) if f.variant == "ours"} == {"no runs"}


def test_figures_come_with_their_numbers(tmp_path):
    records = Records(tmp_path)
    made_up(records, 0.1)
    for figure in figures.FIGURES.values():
        files = figures.draw(figure, records, lambda experiment: experiment)
        assert [file.suffix for file in files] == [".csv", ".png", ".pdf"]
        assert all(file.stat().st_size > 1000 for file in files)
    header, first, *_ = (tmp_path / "figure-2a.csv").read_text().splitlines()
    assert header.split(",")[:4] == ["variant", "experiment", "method", "seed"]
    assert first.startswith("described,letter-16-batch-8,min-avg,0,0,")


# ------------------------------------------------------------------ the commands


def test_every_declared_experiment_has_all_variants_and_the_paper_s_lengths():
    experiments = {e.name: e for figure in figures.FIGURES.values() for e in figure.experiments}
    assert len(experiments) == 8
    assert {e.steps for e in experiments.values()} == {10_000, 20_000}
    for experiment in experiments.values():
        assert list(experiment.methods) == list(VARIANTS)
        assert isinstance(experiment.methods["described"]["min-max"].hypergradient, bl.hypergradients.Unrolled)
        assert isinstance(experiment.methods["published"]["min-max"].hypergradient, bl.hypergradients.Direct)


def test_reproduce_runs_draws_and_is_judged(tmp_path):
    ran = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert ran.exit_code == 0, ran.errors
    assert "2 runs in" in ran.text
    assert (tmp_path / "figure-1c.png").is_file()
    again = call("reproduce", "1c", "--quick", "--seeds", "1", "--out", str(tmp_path), "--quiet")
    assert "all runs were there" in again.text
    judged = call("claims", "--quick", "--out", str(tmp_path))
    assert "3 unseen sinusoids" in judged.text
    assert "inconclusive" in judged.text
    assert call("claims", "--quick", "--markdown", "--out", str(tmp_path)).text.startswith("| figure | claim |")


def test_bad_names_are_refused_with_a_suggestion():
    ran = call("reproduce", "1d")
    assert ran.exit_code == 2
    assert "there is no figure '1d'" in ran.errors
    assert "Did you mean 1" in ran.errors
    assert "Did you mean described?" in call("reproduce", "1a", "--variant", "describe").errors


def test_claims_without_runs_say_what_to_do(tmp_path):
    ran = call("claims", "--out", str(tmp_path / "nowhere"))
    assert ran.exit_code == 1
    assert "no finished runs" in ran.errors
    assert "bilevel reproduce" in ran.errors


def test_missing_data_are_told_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("BILEVEL_DATA", str(tmp_path / "nowhere"))
    figures.FASHION.require.cache_clear()  # type: ignore[attr-defined]
    ran = call("reproduce", "2a", "1a", "--quick", "--out", str(tmp_path / "out"))
    assert ran.exit_code == 1
    assert "no folder fashion-mnist" in ran.errors
    assert not (tmp_path / "out").exists()


def test_interrupts_of_the_command(monkeypatch, tmp_path):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", stop)
    ran = call("reproduce", "2a", "--quick", "--out", str(tmp_path))
    assert ran.exit_code == 130
    assert "the same command goes on" in ran.errors


def test_the_function_refuses_what_the_command_refuses(tmp_path):
    with pytest.raises(ValueError, match=r"figures=...\) got '9z'"):
        reproduce.reproduce(["9z"], out=tmp_path / "new")
    with pytest.raises(ValueError, match=r"variants=...\) got 'mine'"):
        reproduce.reproduce(["1c"], ["mine"], out=tmp_path / "new")
    with pytest.raises(ValueError, match="seeds"):
        reproduce.reproduce(["1c"], seeds=0, out=tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it needs a folder"):
        reproduce.reproduce(["1c"], out=tmp_path / "file")
    assert not (tmp_path / "new").exists()
