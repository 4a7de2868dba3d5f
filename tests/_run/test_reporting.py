"""A run with a folder tells the folder, whatever else it tells, and goes on telling when it is resumed."""

import json
from typing import NamedTuple

import pytest

import bilevel as bl
from bilevel._run.reporting import Report
from bilevel._run.watching import Watched, WatchedRun


def solve(folder, **options):
    known = bl.problems.opposed_slopes()
    options = {"steps": 40, "every": 10, **options}
    return bl.solve(known.problem, bl.MORBiT(0.1, 0.5), known.x, progress=False, checkpoint=folder, **options)


def lines(folder):
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def test_a_run_with_a_folder_writes_its_progress(tmp_path):
    result = solve(bl.Checkpoint(tmp_path / "run", steps=20))
    told = lines(tmp_path / "run")
    assert told[0]["event"] == "start"
    assert told[0]["folder"] == str(tmp_path / "run")
    assert told[-1]["event"] == "end"
    assert [line["validation/worst"] for line in told if line["event"] == "evaluation"] == list(result.history.worst)
    assert 20 in [line["step"] for line in told if line["event"] == "checkpoint"]
    run = WatchedRun(tmp_path / "run").poll()
    assert (run.state, run.step, run.steps, run.title) == ("finished", 40, 40, "MORBiT")


def test_a_run_that_is_looked_up_again_tells_nothing(tmp_path):
    solve(tmp_path)
    before = lines(tmp_path)
    solve(tmp_path, resume=True)
    assert lines(tmp_path) == before


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path):
    whole = solve(tmp_path / "whole")

    def fail(row):
        if row["step"] == 30:
            raise SystemExit("power")

    with pytest.raises(SystemExit, match="power"):
        solve(bl.Checkpoint(tmp_path / "run", steps=5), callback=fail)
    assert lines(tmp_path / "run")[-1]["message"] == "SystemExit: power"
    solve(tmp_path / "run", resume=True)
    run = WatchedRun(tmp_path / "run").poll()
    assert (run.state, run.resumed) == ("finished", 1)
    assert [seen.step for seen in run.seen] == [0, 10, 20, 30, 40]
    assert [seen.worst for seen in run.seen] == list(whole.history.worst)


def test_every_seed_tells_its_own_folder(tmp_path):
    results = solve(tmp_path, seeds=[1, 4])
    runs = Watched(tmp_path).poll()
    assert [(run.folder.name, run.seed, run.state) for run in runs] == [
        ("seed-1", 1, "finished"),
        ("seed-4", 4, "finished"),
    ]
    assert [run.seen[-1].worst for run in runs] == [result.worst for result in results]


class Divergence(NamedTuple):
    step: int
    back_to: int | None


class Row(NamedTuple):
    step: int


class Going(NamedTuple):
    """What a report reads of what a run has reached."""

    step: int
    rows: tuple[Row, ...]
    divergences: tuple[Divergence, ...] = ()
    seconds: float = 0.0
    compile_seconds: float = 0.0


def test_a_run_that_goes_back_tells_why_and_its_steps_again(monkeypatch):
    told = []
    monkeypatch.setattr(
        Report, "_log", lambda self, row, pace: told.append(row.step) or setattr(self, "_told", row.step)
    )
    monkeypatch.setattr(Report, "event", lambda self, kind, facts: told.append((kind, dict(facts))))
    report, rows, diverged = Report([object()]), tuple(map(Row, (0, 10, 20, 30))), (Divergence(25, 10),)
    report._last, report._told = Going(0, rows[:1]), 0
    for reached in (
        Going(10, rows[:2]),
        Going(20, rows[:3]),
        Going(10, rows[:2], diverged),  # it broke at step 25
        Going(15, rows[:2], diverged),
        Going(20, rows[:3], diverged),
        Going(30, rows, diverged),
    ):
        report.move(reached)
    assert told == [10, 20, ("divergence", {"step": 25, "back_to": 10}), 20, 30]
