"""An experiment: what is kept, what is run again, what a killed process leaves."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import ANY

import numpy as np
import pytest

import bilevel as bl
from bilevel._run.checkpoint_writer import StatesOnly, open_checkpoints
from bilevel._run.driver import run_one
from bilevel._run.progress import Quiet
from bilevel.studies.records import COLUMNS, Experiment, MemoryRecords, Record, RecordFiles
from bilevel.studies.running import Stage, run
from bilevel.studies.statistics import final, score


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
SMALL = Experiment(
    "small", "two numbers", start, 40, dict.fromkeys(["described", "published", "ours"], METHODS), evaluations=4
)
STAGE = Stage(SMALL, "described")
SEEDS = range(2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    records = RecordFiles(tmp_path_factory.mktemp("finished"))
    assert run(STAGE, SEEDS, records, progress=False).runs == 4
    return records


def test_runs_are_kept_as_they_were(finished):
    ready = start(1, "described")
    options = {"on_divergence": bl.divergence.Stop(), "fitted": False, "progress": False}
    result = bl.solve(ready.problem, SOLVER, ready.x, steps=40, every=10, seed=1, **options)
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
    records = RecordFiles(tmp_path)
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
        records = RecordFiles(tmp_path / str(trial))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda seed, r=records: r.keep(SMALL, "described", "min-max", seed, record), range(8)))
        assert list(records.read(SMALL, "described", "min-max")) == list(range(8))


class Interrupted(RecordFiles):
    """Ctrl-C after the first run is kept."""

    def keep(self, *arguments):
        super().keep(*arguments)
        raise KeyboardInterrupt


def test_ctrl_c_loses_nothing_that_is_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(STAGE, SEEDS, Interrupted(tmp_path), progress=False)
    records = RecordFiles(tmp_path)
    left = len(STAGE.missing(records, SEEDS))
    assert left < 4
    assert run(STAGE, SEEDS, records, progress=False).runs == left
    assert STAGE.missing(records, SEEDS) == []


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from test_running import STAGE, RecordFiles, run
moment, folder = sys.argv[1:]
files, replace, one_at_a_time = [], os.replace, threading.Lock()
def replacing(path, target):
    with one_at_a_time:
        last = target.suffix == ".csv" and len(files) == 1
        if last and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(path, target)
        files.extend([target] * (target.suffix == ".csv"))
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
os.replace = replacing
run(STAGE, range(2), RecordFiles(Path(folder)), False)
"""


@pytest.mark.parametrize(("moment", "kept"), [("before", 1), ("after", 2)])
def test_what_a_killed_process_had_finished_is_there(tmp_path, finished, moment, kept):
    """Killed with the second file written, but not yet, or just now, under its name."""
    where = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__)), *sys.path]
        )
    }
    ran = subprocess.run([sys.executable, "-c", KILLED, moment, str(tmp_path)], env=where, timeout=240, check=False)
    assert ran.returncode == -signal.SIGKILL
    records = RecordFiles(tmp_path)
    assert len(STAGE.missing(records, SEEDS)) == 4 - kept
    assert run(STAGE, SEEDS, records, progress=False).runs == 4 - kept
    for method in METHODS:
        for seed in SEEDS:
            ours, theirs = (r.read(SMALL, "described", method)[seed] for r in (records, finished))
            np.testing.assert_allclose(ours["worst_test"], theirs["worst_test"], rtol=1e-5)  # float32 there


def test_records_in_memory_are_those_of_files(finished):
    records = MemoryRecords()
    assert run(STAGE, SEEDS, records, progress=False).runs == 4
    assert run(STAGE, SEEDS, records, progress=False).runs == 0
    assert STAGE.missing(records, range(3)) == STAGE.missing(finished, range(3))
    assert Stage(SMALL.shorter(1), "described").missing(records, SEEDS) == [(s, m) for s in SEEDS for m in METHODS]
    for method in METHODS:
        ours, theirs = (r.read(SMALL, "described", method) for r in (records, finished))
        assert list(ours) == list(theirs) == [0, 1]
        for seed in SEEDS:
            for name in set(COLUMNS) - {"seconds"}:
                np.testing.assert_allclose(ours[seed][name], theirs[seed][name], rtol=1e-8)  # files have nine digits


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_facts_are_kept_by_name(kind, tmp_path):
    records = MemoryRecords() if kind == "memory" else RecordFiles(tmp_path / "new")
    assert records.read_facts("cost-SOBA") == {}
    records.keep_facts("cost-SOBA", {"calls": 4.5, "solver": "SOBA()"})
    assert records.read_facts("cost-SOBA") == {"calls": 4.5, "solver": "SOBA()"}


DIVERGES = Experiment("far", "far too large a rate", start, 40, {"described": {"run": SOLVER.replace(upper_lr=1e30)}})


def test_a_run_that_diverges_is_counted_and_all_other_warnings_stay():
    filters = list(warnings.filters)
    assert run(Stage(DIVERGES, "described"), [0], MemoryRecords(), progress=False) == (1, ANY, 1)
    assert warnings.filters == filters
    with pytest.warns(UserWarning, match="of the user's own"):
        warnings.warn("of the user's own", stacklevel=1)


# ------------------------------------------------------------------ how a run ended


def ended(*losses, last=100.0):
    return Record({"step": np.linspace(0, last, len(losses)), "worst_validation": np.array(losses)})


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (ended(1.0, 0.5, 0.25), 0.25),
        (ended(1.0, 9.0, 9.9), 9.9),
        (ended(1.0, 5.0, 10.1), np.inf),  # above ten times the first loss
        (ended(1.0, 0.1, last=2.0), np.inf),  # ended early, and low
        (ended(1.0, np.nan), np.inf),
        (ended(-1.0, -0.5), -0.5),  # a loss may be negative
        (ended(-1.0, 8.1), np.inf),
        (ended(0.0, 0.5), 0.5),
        (None, np.inf),
    ],
)
def test_runs_that_diverge_have_an_infinite_score(record, expected):
    assert score(record, 100) == expected


def test_final_numbers_are_means_over_the_last_tenth():
    record = Record({"step": np.arange(101.0), "loss": np.where(np.arange(101) < 90, 7.0, np.arange(101))})
    assert final(record, "loss") == 95.0


# ------------------------------------------------------------------ runs under way

LONG = Stage(Experiment("long", "two numbers", start, 4000, {"described": METHODS}, evaluations=40), "described")

ENDED = """
import os, signal, sys, threading
from pathlib import Path
from bilevel._run import driver
from bilevel._run import checkpoint_writer
from test_running import LONG, RecordFiles, run
number, folder = int(sys.argv[1]), Path(sys.argv[2])
driver.CALL_SECONDS = 0.0
begun, write = [], checkpoint_writer.write_whole
def writing(path, content):
    write(path, content)
    begun.append(path)
    if len(begun) == 3:
        os.kill(os.getpid(), number)
checkpoint_writer.write_whole = writing
under_way = RecordFiles.under_way
RecordFiles.under_way = lambda *a: under_way(*a).__class__(under_way(*a).folder, steps=50)
run(LONG, range(2), RecordFiles(folder), False)
"""

AGAIN = """
import sys
from pathlib import Path
from bilevel._run import checkpoint_writer
from test_running import LONG, RecordFiles, run
begun, restore = [], checkpoint_writer.CheckpointWriter.restore
def restoring(self):
    reached = restore(self)
    begun.append(0 if reached is None else reached.step)
    return reached
checkpoint_writer.CheckpointWriter.restore = restoring
run(LONG, range(2), RecordFiles(Path(sys.argv[1])), False)
sys.exit(0 if max(begun) > 0 else 1)
"""


def python_path():
    here = os.path.dirname(__file__)
    return os.environ | {"PYTHONPATH": os.pathsep.join([here, os.path.dirname(here), *sys.path])}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -9),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, -2, marks=pytest.mark.slow),
    ],
)
def test_a_study_goes_on_in_the_middle_of_its_runs(number, code, tmp_path):
    command = [sys.executable, "-c", ENDED, str(int(number)), str(tmp_path)]
    ran = subprocess.run(command, env=python_path(), timeout=240, check=False, capture_output=True)
    assert ran.returncode == code, ran.stderr
    records = RecordFiles(tmp_path)
    under_way = sorted(tmp_path.rglob("seed-*.unfinished/state-*"))
    assert under_way
    left = len(LONG.missing(records, SEEDS))
    again = subprocess.run([sys.executable, "-c", AGAIN, str(tmp_path)], env=python_path(), timeout=240, check=False)
    assert again.returncode == 0
    assert left > 0
    assert LONG.missing(records, SEEDS) == []
    assert not list(tmp_path.rglob("*.unfinished"))


def test_a_study_resumed_equals_one_that_never_stopped(tmp_path):
    stopped, whole = RecordFiles(tmp_path / "stopped"), RecordFiles(tmp_path / "whole")
    halt = threading.Event()
    place = stopped.under_way(LONG.experiment, "described", "min-max", 0)
    kept = dataclasses.replace(LONG.run(0, "min-max"), checkpoint=place, resume=True, callback=lambda row: halt.set())
    with open_checkpoints([kept], StatesOnly) as [writer]:
        assert run_one(kept, Quiet(), halt, writer).status == "interrupted"
    with open_checkpoints([kept], StatesOnly) as [writer]:
        assert writer.restore().step == 100
    for records in (stopped, whole):
        run(LONG, [0], records, progress=False)
    ours, theirs = (records.read(LONG.experiment, "described", "min-max")[0] for records in (stopped, whole))
    for name in set(COLUMNS) - {"seconds"}:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_what_is_under_way_of_another_version_is_begun_again(tmp_path):
    records = RecordFiles(tmp_path)
    halt, place = threading.Event(), records.under_way(LONG.experiment, "described", "min-max", 0)
    other = dataclasses.replace(LONG.run(1, "min-max"), checkpoint=place, callback=lambda row: halt.set())
    with open_checkpoints([other], StatesOnly) as [writer]:
        run_one(other, Quiet(), halt, writer)
    assert run(LONG, [0], records, progress=False).runs == 2
    assert not list(tmp_path.rglob("*.unfinished"))
