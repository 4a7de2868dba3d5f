"""What is seen of a run from outside: from whole, torn, hostile and missing files, and from the lock."""

import fcntl
import json
import math
import os
import subprocess
import sys
import time

import pytest

from bilevel._run import lock as lock_module
from bilevel._run.lock import is_held
from bilevel._run.loggers.progress import Lines
from bilevel._run.watching import Watched, WatchedRun

NOW = 1_800_000_000.0
START = {"event": "start", "time": NOW, "title": "MORBiT", "seed": 3, "steps": 100, "step": 0}


def evaluation(step, worst, **more):
    numbers = {"validation/worst": worst, "validation/mean": worst, "steps per second": 10.0, "seconds": step / 10}
    return {"event": "evaluation", "time": NOW + step / 10, "step": step, **numbers, **more}


def write(folder, *lines, torn=b""):
    folder.mkdir(exist_ok=True)
    with open(folder / "progress.jsonl", "ab") as file:
        file.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + torn)


@pytest.fixture
def clock(monkeypatch):
    """The time, which stands still."""
    now = [NOW + 1]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


@pytest.fixture
def lock(tmp_path):
    """Holds the lock of the folder as a process at work does."""
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


# ------------------------------------------------------------------ lines


def test_lines_come_once_and_whole(tmp_path):
    path = tmp_path / "progress.jsonl"
    lines = Lines(path)
    assert lines.poll() == (False, [])
    path.write_bytes(b'{"a":1}\n{"b":')
    assert lines.poll() == (True, [{"a": 1}])
    assert lines.poll() == (False, [])
    with open(path, "ab") as file:
        file.write(b'2}\nno json\n\xff\xfe\n[1]\n\n{"c":3}\n')
    assert lines.poll() == (False, [{"b": 2}, {"c": 3}])
    path.write_bytes(b'{"d":4}\n')  # another file
    assert lines.poll() == (True, [{"d": 4}])


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("bilevel._run.loggers.progress.LONGEST", 100)
    monkeypatch.setattr("bilevel._run.loggers.progress.PIECE", 50)
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"x" * 10_000)
    lines = Lines(path)
    lines.poll()
    assert len(lines._rest) <= 100
    with open(path, "ab") as file:
        file.write(b'\n{"a":1}\n')
    assert lines.poll() == (False, [{"a": 1}])


# ------------------------------------------------------------------ a run


def test_a_run_is_what_its_lines_say(tmp_path, lock, clock):
    tasks = {"b": {"validation": 1.0, "weight": 0.2}, "a": {"validation": None, "weight": 0.8}}
    write(tmp_path, START, evaluation(0, 4.0), evaluation(10, 2.0), evaluation(20, 3.0, tasks=tasks))
    clock[0] = NOW + 3  # a second after the last line
    run = WatchedRun(tmp_path).poll()
    assert (run.title, run.seed, run.steps, run.step, run.state) == ("MORBiT", 3, 100, 20, "running")
    assert run.best.step == 10
    assert [seen.worst for seen in run.seen] == [4.0, 2.0, 3.0]
    assert run.seconds_left == pytest.approx(80 / 10 - 1)
    assert [task.name for task in run.tasks(5)] == ["a", "b"]  # a loss that is no number is the worst
    write(tmp_path, {"event": "checkpoint", "time": NOW + 3, "step": 30}, {"event": "problem", "message": "disk"})
    assert run.poll().step == 30
    assert run.checkpoint == (30, NOW + 3)
    assert [problem.message for problem in run.problems] == ["disk"]
    write(tmp_path, {"event": "end", "status": "finished", "message": "done"})
    assert (run.poll().state, run.is_over) == ("finished", True)


def test_what_is_done_again_is_shown_once(tmp_path, lock, clock):
    write(tmp_path, START, evaluation(0, 4.0), evaluation(10, 2.0), evaluation(20, 1.0))
    write(tmp_path, START | {"step": 10}, evaluation(20, 1.5))
    run = WatchedRun(tmp_path).poll()
    assert [(seen.step, seen.worst) for seen in run.seen] == [(0, 4.0), (10, 2.0), (20, 1.5)]
    assert run.resumed == 1
    went_back = {"event": "divergence", "time": NOW, "step": 25, "message": "x became NaN", "back_to": 0}
    write(tmp_path, went_back, evaluation(10, 3.0))
    assert [(seen.step, seen.worst) for seen in run.poll().seen] == [(0, 4.0), (10, 3.0)]
    assert [happened.step for happened in run.divergences] == [25]


def test_a_run_that_is_resumed_after_its_end_runs(tmp_path, lock, clock):
    write(tmp_path, START, evaluation(0, 4.0), {"event": "end", "status": "interrupted", "message": ""})
    run = WatchedRun(tmp_path).poll()
    assert (run.state, run.is_over) == ("interrupted", False)
    write(tmp_path, START | {"step": 5})
    assert run.poll().state == "running"


def test_where_a_lower_loss_is_no_better_iterate_there_is_no_best(tmp_path, clock):
    write(tmp_path, START | {"comparable": False}, evaluation(0, 4.0))
    assert WatchedRun(tmp_path).poll().best is None


# ------------------------------------------------------------------ its state


def test_a_run_without_an_end_is_dead_when_nobody_holds_the_lock(tmp_path, clock):
    write(tmp_path, START, evaluation(0, 4.0), torn=b'{"event":"evalu')
    (tmp_path / "lock").write_text("{}")
    assert WatchedRun(tmp_path).poll().state == "dead"
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert WatchedRun(tmp_path).poll().state == "running"
    assert WatchedRun(tmp_path).poll().state == "dead"


def test_without_a_lock_a_silent_run_is_not_said_to_be_dead(tmp_path, clock):
    write(tmp_path, START, evaluation(0, 4.0))
    assert WatchedRun(tmp_path).poll().state == "running"
    clock[0] += 3600
    assert WatchedRun(tmp_path).poll().state == "not known"
    clock[0] = NOW - 3600  # a clock that was set back
    run = WatchedRun(tmp_path).poll()
    assert (run.state, run.age(NOW)) == ("running", 0.0)


def test_before_the_first_line(tmp_path):
    assert WatchedRun(tmp_path).poll().state == "nothing yet"
    assert WatchedRun(tmp_path / "missing").poll().state == "nothing yet"
    (tmp_path / "run.json").write_text('{"title": "Tandem", "seed": 4, "steps": 50, "tasks": ["a"]}')
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = WatchedRun(tmp_path).poll()
        assert (run.state, run.title, run.seed, run.steps) == ("starting", "Tandem", 4, 50)
    assert run.poll().state == "dead"


@pytest.mark.parametrize("value", [None, True, -1, 1e400, "Infinity", "text", [], {}, "\x1b[2J", 10**400])
def test_lines_of_any_content_are_read(tmp_path, value, clock):
    keys = ("event", "time", "step", "steps", "seed", "title", "tasks", "validation/worst", "status", "message")
    for key in keys:
        for line in (
            START,
            evaluation(1, 2.0, tasks={"a": {"validation": 1.0}}),
            evaluation(2, 2.0, tasks={"a": value}),
        ):
            write(tmp_path, {**line, key: value})
    write(tmp_path, {"event": "checkpoint", "step": value, "time": value}, {"event": "divergence", "back_to": value})
    run = WatchedRun(tmp_path).poll()
    assert run.seen
    assert all(math.isfinite(seen.step) for seen in run.seen)
    assert run.title.isprintable()
    assert run.seconds_left is not None
    (tmp_path / "run.json").write_text(json.dumps(value))
    assert WatchedRun(tmp_path).poll().state


# ------------------------------------------------------------------ folders


def test_a_folder_of_several_runs_in_the_order_of_their_numbers(tmp_path):
    for seed in (10, 2, 0):
        write(tmp_path / f"seed-{seed}", START | {"seed": seed})
    (tmp_path / "figures").mkdir()
    watched = Watched(tmp_path)
    first = watched.poll()
    assert [run.seed for run in first] == [0, 2, 10]
    write(tmp_path / "seed-3", START | {"seed": 3})
    again = watched.poll()
    assert [run.seed for run in again] == [0, 2, 3, 10]
    assert again[0] is first[0]  # which goes on from where it was


# ------------------------------------------------------------------ the lock


HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True)"


@pytest.mark.parametrize("listed", [True, False], ids=["listed", "tried"])
def test_a_lock_is_held_as_long_as_its_process_lives(tmp_path, listed, monkeypatch):
    if not listed:
        monkeypatch.setattr(lock_module, "KERNEL_LIST", tmp_path / "none")
    path = tmp_path / "lock"
    assert is_held(path) is None
    command = [sys.executable, "-c", HOLD + "; time.sleep(60)", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            assert is_held(path) is True
        finally:
            process.kill()
    assert is_held(path) is False
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # asking has not taken it


def test_a_lock_that_is_listed_is_not_touched(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not lock_module._is_listed(os.stat(path)):
            pytest.skip("this kernel does not list locks")
        monkeypatch.setattr(fcntl, "flock", None)
        assert is_held(path) is True


def test_the_best_evaluation_is_that_of_the_selection_rows_where_there_are_any(tmp_path):
    losses = [(9.0, 5.0), (6.0, 2.0), (3.0, 4.0)]
    seen = [evaluation(10 * k, worst, **{"selection/worst": held}) for k, (worst, held) in enumerate(losses)]
    write(tmp_path, START, *seen)
    best = WatchedRun(tmp_path).poll().best
    assert (best.step, best.worst, best.selection) == (10, 6.0, 2.0)
