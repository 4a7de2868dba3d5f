"""`bilevel fit`, `predict`, `adapt`, `show` and `report`, from a file to a folder and back."""

import csv
import io
import json
import os
import re
import shutil
import signal
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from bilevel import estimators
from bilevel.estimators.tables import folder as folders
from bilevel.estimators.tables import reading
from bilevel.estimators.tables.fitting import fit
from bilevel.estimators.tables.judging import MODELS
from bilevel.estimators.tables.settings import settings
from command import call
from estimators.tables.made import FAST, OPTIONS, column, rows, write
from report.made import Page, five


def test_a_fit_writes_a_folder_whose_table_is_what_was_printed(fitted):
    folder, ran = fitted
    files = {"fit.json", "fit.toml", "model.safetensors", "tasks.csv", "history.csv", "result.safetensors"}
    assert {path.name for path in folder.iterdir()} == files | {"min-avg.safetensors", "losses.png", "run.png"}
    assert call("show", str(folder)).text.strip() == ran.text.strip()
    kept = folders.read(folder)
    scored = [line for line in kept.lines if line.is_scored]
    assert [line.task for line in kept.lines if not line.is_scored] == ["single", "tiny"]
    assert {line.task: (line.rows, line.held_out) for line in scored} == {
        "north": (60, 12),
        "south": (50, 10),
        "west": (45, 9),
    }
    robust = [line.losses["robust"] for line in scored]
    assert robust == sorted(robust, reverse=True)
    for model in MODELS:
        losses = [line.losses[model] for line in scored]
        assert kept.verdict.worst[model] == pytest.approx(max(losses))
        assert kept.verdict.mean[model] == pytest.approx(np.mean(losses))
    assert "2 tasks with fewer than 40 rows are fitted, and not scored." in ran.text
    assert kept.verdict.sentence() in " ".join(ran.text.split())
    with open(folder / "tasks.csv") as file:
        table = list(csv.DictReader(file))
    assert [float(row["robust loss"]) for row in table[:3]] == robust
    assert table[3]["robust loss"] == ""


@pytest.fixture(scope="module")
def judged(csv_file):
    """The same fit from Python, without heads of all rows, and what the estimators were fitted to."""
    seen, plain = [], estimators.RobustRepresentationClassifier.fit

    def noted(self, X, y, **more):
        seen.append((X, y, more["task"]))
        return plain(self, X, y, **more)

    given = {"data": str(csv_file), "target": "ill", "task": "clinic", "steps": 20, "quiet": True, "refit": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators.RobustRepresentationClassifier, "fit", noted)
        return fit(settings(given, None), lambda _: None), seen


def test_min_avg_and_robust_see_the_same_rows_and_none_that_were_held_out(judged):
    found, seen = judged
    held = {line.task: line.held_out for line in found.lines}
    assert [len(y) for _, y, _ in seen] == [161 - sum(held.values())] * 2
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))
    counts = dict(zip(*np.unique(seen[0][2], return_counts=True), strict=True))
    assert counts == {line.task: line.rows - held[line.task] for line in found.lines}


def test_what_is_kept_is_what_was_judged_but_for_its_heads(judged, fitted):
    found, seen = judged
    kept, X = estimators.load(fitted[0] / "model.safetensors"), seen[0][0]
    assert np.array_equal(kept.transform(X), found.model.transform(X))
    both = [model.predict_proba(X, task=["north"] * len(X)) for model in (kept, found.model)]
    assert not np.array_equal(*both)
    assert folders.read(fitted[0]).lines[:3] == found.lines[:3]
    assert folders.read(fitted[0]).verdict == found.verdict
    assert "fitted again to all rows" in " ".join(fitted[1].text.split())


def test_json_is_all_that_is_printed_and_a_toml_file_gives_the_same(fitted, tmp_path):
    config = fitted[0] / "fit.toml"
    ran = call("fit", "--config", str(config), "--json", "--quiet", f"--out={tmp_path / 'run'}")
    assert ran.exit_code == 0, ran.errors
    assert ran.errors == ""
    told, kept = json.loads(ran.stdout), json.loads((fitted[0] / "fit.json").read_text())
    assert told["out"] == str(tmp_path / "run")
    assert (told["tasks"], told["verdict"]) == (kept["tasks"], kept["verdict"])
    assert told["settings"]["steps"] == 20


def test_the_command_line_wins_over_the_file(fitted):
    asked = settings({"smallest": 50, "exclude": ["age"]}, fitted[0] / "fit.toml")
    assert (asked.smallest, asked.exclude, asked.steps, asked.target) == (50, ("age",), 20, "ill")


def test_a_folder_is_replaced_at_once_and_stays_where_that_fails(judged, fitted, tmp_path, monkeypatch):
    run = Path(shutil.copytree(fitted[0], tmp_path / "run"))
    (run / "old.txt").write_text("old")
    before = sorted(path.name for path in run.iterdir())

    def full(*given, **more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bilevel.estimators.tables.folder.draw_losses", full)
        with pytest.raises(OSError, match=r"run' cannot be written \(No space left on device\)"):
            folders.write(judged[0], run)
    assert sorted(path.name for path in run.iterdir()) == before
    folders.write(judged[0], run)
    assert not (run / "old.txt").exists()
    assert not folders.read(run).refitted
    assert "it has not seen the rows held out" in " ".join(call("show", str(run)).text.split())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("name", ["out.csv", "out.parquet", None])
def test_predictions_are_those_of_the_model_in_the_order_of_the_file(name, csv_file, fitted, tmp_path):
    folder, _ = fitted
    ran = call("predict", str(folder), str(csv_file), *([f"--out={tmp_path / name}"] if name else []))
    assert ran.exit_code == 0, ran.errors
    if name == "out.parquet":
        found = reading.read(tmp_path / name)
        tasks, told = found.columns["task"].to_pylist(), found.columns["prediction"].to_pylist()
        yes = found.columns["probability yes"].to_pylist()
    else:
        text = ran.stdout if name is None else (tmp_path / name).read_text()
        table = list(csv.DictReader(io.StringIO(text)))
        tasks, told, yes = ([row[c] for row in table] for c in ("task", "prediction", "probability yes"))
    assert tasks == [row[0] for row in rows()[1:]]
    assert [p > 0.5 for p in map(float, yes)] == [label == "yes" for label in told]
    right = np.mean([a == row[-1] for a, row in zip(told, rows()[1:], strict=True)])
    assert f"161 rows have the target ill: accuracy {right:.3f}" in ran.errors


def test_new_columns_categories_and_labels_do_no_harm(fitted, tmp_path):
    table = rows(seed=5, sizes=(("west", 20),))
    plain = write(tmp_path / "plain.csv", table)
    reordered = [[row[5], "new", *row[:2], "x" if k else row[2], *row[3:5]] for k, row in enumerate(table)]
    reordered[0] = ["ill", "more", "clinic", "age", "sex", "seen", "note"]
    reordered[1][0] = "perhaps"
    strange = write(tmp_path / "strange.csv", reordered)
    first, second = (call("predict", str(fitted[0]), str(file)) for file in (plain, strange))
    assert first.exit_code == second.exit_code == 0, second.errors
    assert "1 rows have a ill that the model has not seen, such as 'perhaps'" in second.errors
    assert len(first.stdout.splitlines()) == len(second.stdout.splitlines()) == 21


def test_a_new_task_is_fitted_and_then_predicted(fitted, tmp_path):
    run = Path(shutil.copytree(fitted[0], tmp_path / "run"))
    new = write(tmp_path / "east.csv", rows(seed=3, sizes=(("east", 40),)))
    copy = call("adapt", str(run), str(new), f"--out={tmp_path / 'copy'}")
    assert copy.exit_code == 0, copy.errors
    assert re.match(r"east: 40 rows; a first head has a loss of [\d.]+ on 10 of them", copy.text)
    assert call("predict", str(run), str(new)).exit_code == 2
    ran = call("adapt", str(run), str(new), "--json")
    assert json.loads(ran.stdout)["tasks"][0]["judged"] == 10
    told = [call("predict", str(path), str(new)).stdout for path in (run, tmp_path / "copy")]
    assert told[0] == told[1] != ""
    assert call("show", str(run)).text == call("show", str(fitted[0])).text.replace(str(fitted[0]), str(run))
    assert call("adapt", str(run), str(new), "--replace").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "east.csv", "run"]


def test_the_folder_becomes_a_page_with_min_avg_beside_robust(fitted, tmp_path):
    for package in ("jinja2", "vl_convert"):
        pytest.importorskip(package, reason=f"needs {package}: of the extra report")
    ran = call("report", str(fitted[0]), f"--out={tmp_path / 'page.html'}")
    assert ran.exit_code == 0, ran.errors
    kept, page = folders.read(fitted[0]), Page(tmp_path / "page.html")
    told = page.column("Tasks, the worst first", "robust: loss")
    assert told == {line.task: five(line.losses["robust"]) for line in kept.lines if line.is_scored}
    text = (tmp_path / "page.html").read_text()
    assert kept.verdict.sentence() in text
    assert "<h1>ill by clinic</h1>" in text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing_behind(number, code, csv_file, tmp_path, monkeypatch):
    def pressed(self, *given, **more):
        os.kill(os.getpid(), number)
        raise AssertionError("the signal should have ended this")

    monkeypatch.setattr(estimators.RobustRepresentationClassifier, "fit", pressed)
    ran = call("fit", str(csv_file), *OPTIONS, *FAST, f"--out={tmp_path / 'run'}")
    assert (ran.exit_code, ran.text, ran.errors) == (code, "", "Interrupted: nothing was written.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_control_c_in_the_middle_of_a_run_leaves_nothing_behind(csv_file, tmp_path, monkeypatch):
    """The run itself answers to Ctrl-C by ending early, with what it has reached."""
    plain, timers = estimators.RobustRepresentationClassifier.fit, []

    def pressed(self, *given, **more):
        timers.append(threading.Timer(8, os.kill, (os.getpid(), signal.SIGINT)))
        timers[-1].start()
        return plain(self, *given, **more)

    monkeypatch.setattr(estimators.RobustRepresentationClassifier, "fit", pressed)
    options = (*OPTIONS, "--steps=10000000", "--quiet", f"--out={tmp_path / 'run'}")
    ran = call("fit", str(csv_file), *options)
    for timer in timers:
        timer.cancel()
    assert (ran.exit_code, ran.text, len(timers)) == (130, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_cut_short_is_not_taken_for_a_model(csv_file, tmp_path, monkeypatch):
    def cut(self, *given, **more):
        self.result_ = types.SimpleNamespace(status="interrupted")  # as a run answers to Ctrl-C
        return self

    monkeypatch.setattr(estimators.RobustRepresentationClassifier, "fit", cut)
    ran = call("fit", str(csv_file), *OPTIONS, *FAST, f"--out={tmp_path / 'run'}")
    assert ran.exit_code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("model", ["representation", "kernel"])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_numbers_as_targets_of_either_model(model, suffix, tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = rows()
    ages = [row[1] or "50.0" for row in table[1:]]
    file = write(
        tmp_path / "patients.csv", column(table, "ill", [2 * float(age) + k % 3 for k, age in enumerate(ages)])
    )
    if suffix == "parquet":
        named = {name: pyarrow.array([row[k] for row in table[1:]]) for k, name in enumerate(table[0][:-1])}
        named["ill"] = pyarrow.array([2 * float(age) + k % 3 for k, age in enumerate(ages)])
        file = tmp_path / "patients.parquet"
        pyarrow.parquet.write_table(pyarrow.table(named), file)
    ran = call("fit", str(file), *OPTIONS, f"--model={model}", "--steps=50", f"--out={tmp_path / 'run'}")
    assert ran.exit_code == 0, ran.errors
    assert "(regression)" in ran.errors
    assert "R2" in ran.text
    told = call("predict", str(tmp_path / "run"), str(file))
    assert "161 rows have the target ill: R2 0.9" in told.errors
    assert call("report", str(tmp_path / "run")).exit_code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.index("on rows held out is") < page.index("How it was learnt")  # the model, and then the runs
    assert "worst loss, min-avg" in page
    assert "the other Tandem" not in page
