"""The lines of `Progress`, what all loggers are told, and that a run does not depend on who watches it."""

import itertools
import json
import math
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run.loggers.base import plain_names
from bilevel._run.loggers.progress import encode

NAMES = ("north", "east", "south")


def upper(x, y, batch):
    return jnp.mean((y - batch) ** 2) / 2


def lower(x, y, batch):
    return jnp.mean((y - x - batch) ** 2) / 2


def make(tasks=3, names=NAMES):
    draw = np.random.default_rng(0).normal
    rows = {kind: jnp.array(draw(size=(tasks, 4))) for kind in ("train", "validation", "test")}
    return bl.Problem(upper, lower, bl.Task.stack(**rows, names=list(names)))


PROBLEM, SOLVER = make(), bl.MORBiT(0.1, 0.5, weighting=bl.weightings.SimplexAscent(0.05))
X, Y = jnp.array(1.0, float), jnp.array(0.0, float)


def solve(problem=PROBLEM, solver=SOLVER, steps=20, every=5, **options):
    return bl.solve(problem, solver, X, Y, steps=steps, every=every, progress=False, **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Kept(bl.loggers.Logger):
    """Keeps what it is told."""

    def __init__(self, runs=None, seed=None):
        self.runs = {} if runs is None else runs
        self.calls = self.runs.setdefault(seed, [])

    def start(self, facts):
        self.calls.append(("start", facts))

    def log(self, row):
        self.calls.append(("log", row))

    def event(self, kind, facts):
        self.calls.append((kind, facts))

    def end(self, status, message):
        self.calls.append(("end", status, message))

    def for_run(self, seed):
        return Kept(self.runs, seed)


class Failing(Kept):
    """Raises in one of its methods."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def _raise_in(self, where):
        self.calls.append((where,))
        if where == self.where:
            raise RuntimeError("no such host")

    def start(self, facts):
        self._raise_in("start")

    def log(self, row):
        self._raise_in("log")

    def end(self, status, message):
        self._raise_in("end")


# ------------------------------------------------------------------ what loggers are told


def test_a_logger_is_told_what_the_result_holds():
    kept = Kept()
    result = solve(loggers=[kept])
    (_, facts), *rows, end = kept.calls
    assert facts == bl.loggers.Facts("MORBiT", repr(SOLVER), 0, 20, NAMES, bl.__version__)
    assert end == ("end", "finished", "")
    rows = [row for _, row in rows]
    assert [row.step for row in rows] == list(result.history.step) == [0, 5, 10, 15, 20]
    for name in ("seconds", "validation", "test", "weights", "direction_norm", "upper_rate", "lower_rate"):
        np.testing.assert_array_equal([getattr(row, name) for row in rows], result.history[name], err_msg=name)
    assert math.isnan(rows[0].steps_per_second)
    assert all(row.steps_per_second > 0 for row in rows[1:])


def test_who_watches_does_not_change_the_run():
    class Spoils(Kept):
        def log(self, row):
            row.validation[:] = row.weights[:] = row.lower_rate[:] = row.test[:] = np.nan

    alone, watched = solve(), solve(loggers=[Spoils()])
    for name in ("validation", "test", "weights", "lower_rate"):
        np.testing.assert_array_equal(watched.history[name], alone.history[name])
    assert np.array_equal(alone.x, watched.x)
    assert np.array_equal(alone.best.losses, watched.best.losses)


def test_every_seed_has_a_logger_of_its_own():
    kept = Kept()
    results = solve(seeds=[3, 5], loggers=[kept])
    for result in results:
        (_, facts), *rows, _end = kept.runs[result.seed]
        assert facts.seed == result.seed
        np.testing.assert_array_equal([row.validation for _, row in rows], result.history.validation)
    assert kept.runs[None] == []


def test_seeds_in_one_batch_are_told_apart_too(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # where seeds share compiled calls
    kept = Kept()
    results = solve(seeds=2, loggers=[kept])
    for result in results:
        rows = [call[1] for call in kept.runs[result.seed] if call[0] == "log"]
        np.testing.assert_array_equal([row.validation for row in rows], result.history.validation)


def test_a_run_that_ends_otherwise_says_how():
    stopped, diverged, failed, exited = Kept(), Kept(), Kept(), Kept()
    solve(loggers=[stopped], callback=lambda row: row["step"] >= 10)
    assert stopped.calls[-1] == ("end", "stopped early", "Stopped because the callback asked for it.")
    with pytest.warns(UserWarning, match="diverged"):
        result = solve(solver=bl.MORBiT(0.1, 1e30, weighting=bl.weightings.SimplexAscent(0.05)), loggers=[diverged])
    assert diverged.calls[-1] == ("end", "diverged", result.message)
    assert [call[1].step for call in diverged.calls if call[0] == "log"][-1] == result.steps
    [facts] = [call[1] for call in diverged.calls if call[0] == "divergence"]
    assert (facts["step"], facts["message"]) == (result.steps, result.message)

    def broken(row):
        raise KeyError("column")

    with pytest.warns(RuntimeWarning, match="The callback raised"):
        result = solve(loggers=[failed], callback=broken)
    assert failed.calls[-1] == ("end", "callback failed", result.message)

    def leaves(row):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        solve(loggers=[exited], callback=leaves)
    assert exited.calls[-1] == ("end", "failed", "SystemExit: 3")


# ------------------------------------------------------------------ loggers that raise


@pytest.mark.parametrize(("where", "calls"), [("start", 1), ("log", 2), ("end", 7)])
def test_a_logger_that_raises_is_switched_off_and_the_run_goes_on(where, calls):
    failing, kept = Failing(where), Kept()
    with pytest.warns(UserWarning, match="RuntimeError: no such host") as caught:
        result = solve(loggers=[failing, kept])
    [warning] = caught
    assert f"raised in {where}() and is switched off" in str(warning.message)
    assert result.status == "finished"
    assert len(failing.calls) == calls
    assert len(kept.calls) == 7


@pytest.mark.parametrize("given", ["progress.jsonl", ["progress.jsonl"], [bl.loggers.Progress], 3])
def test_what_is_no_list_of_loggers_is_refused(given):
    with pytest.raises(TypeError, match=r"solve\(loggers=\.\.\.\) got .* it needs a list of loggers"):
        solve(loggers=given)


def test_a_logger_for_one_run_is_refused_with_seeds():
    class One(bl.loggers.Logger):
        def log(self, row):
            pass

    with pytest.raises(NotImplementedError, match=r"for_run\(seed\), and One has none"):
        solve(seeds=2, loggers=[One()])


# ------------------------------------------------------------------ what is told of tasks


def evaluation(validation, test=None, lower_rate=np.nan):
    n = len(validation)
    names = tuple(f"task {i}" for i in range(n))
    values = np.asarray(validation, float)
    return bl.loggers.Evaluation(
        step=1,
        seconds=1.0,
        names=names,
        validation=values,
        test=test,
        weights=np.arange(n) / n,
        direction_norm=np.nan,
        upper_rate=0.1,
        lower_rate=np.full(n, lower_rate),
        weights_rate=np.nan,
        steps_per_second=np.nan,
    )


def test_of_many_tasks_the_worst_ten_are_told():
    losses = np.random.default_rng(0).permutation(51.0 + np.arange(51))
    many, few = evaluation(losses), evaluation(losses[:50])
    assert [task["validation"] for task in many.tasks().values()] == sorted(losses, reverse=True)[:10]
    assert many.tasks()[f"task {np.argmax(losses)}"] == {"validation": 101.0, "weight": np.argmax(losses) / 51}
    assert len(few.tasks()) == 50
    assert len(many.scalars()) == 3 + 2 * 10


def test_a_loss_that_is_no_number_is_the_worst():
    row = evaluation([1.0, np.nan, 3.0, np.inf])
    assert list(row.tasks()) == ["task 1", "task 3", "task 2", "task 0"]


def test_rates_that_are_not_known_are_left_out():
    assert evaluation([1.0, 3.0]).summary() == {"validation/worst": 3.0, "validation/mean": 2.0, "rate/upper": 0.1}
    told = evaluation([1.0], test=np.array([2.0]), lower_rate=0.5).summary()
    assert told["test/worst"] == 2.0
    assert told["rate/lower smallest"] == told["rate/lower largest"] == 0.5


def test_names_that_a_store_refuses_stay_apart():
    names = ["a b", "a_b", "a_b-0", "a/b", "a?b"]
    plain = plain_names(names, r"[^\w/-]")
    assert list(plain) == names
    assert len(set(plain.values())) == len(names)
    long = plain_names(["x" * 300, "x" * 301], "!", letters=200)
    assert sorted(map(len, long.values())) == [200, 202]


# ------------------------------------------------------------------ the lines


def test_the_lines_of_a_run(tmp_path):
    path = tmp_path / "run" / "progress.jsonl"
    result = solve(loggers=[bl.loggers.Progress(path)])
    start, *rows, end = lines(path)
    assert (start["event"], start["seed"], start["steps"], start["step"], start["tasks"]) == ("start", 0, 20, 0, 3)
    assert (end["event"], end["status"], end["message"]) == ("end", "finished", "")
    assert [row["event"] for row in rows] == ["evaluation"] * 5
    assert [row["validation/worst"] for row in rows] == list(result.history.worst)
    last = rows[-1]
    assert last["step"] == 20
    for name, task in last["tasks"].items():
        i = NAMES.index(name)
        assert task == {
            "validation": result.losses[i],
            "test": result.test_losses[i],
            "weight": result.weights[i],
        }
    assert next(iter(last["tasks"])) == result.worst_task
    assert all(a["time"] <= b["time"] for a, b in itertools.pairwise(rows))


def test_seeds_have_files_in_folders_of_their_own(tmp_path):
    results = solve(seeds=[2, 7], loggers=[bl.loggers.Progress(tmp_path / "progress.jsonl")])
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl")) == [
        "seed-2/progress.jsonl",
        "seed-7/progress.jsonl",
    ]
    for result in results:
        rows = [
            line for line in lines(tmp_path / f"seed-{result.seed}/progress.jsonl") if line["event"] == "evaluation"
        ]
        assert [row["validation/worst"] for row in rows] == list(result.history.worst)


def test_every_line_is_json_without_nan_and_infinity():
    def refuse(text):
        raise ValueError(text)

    row = {"a": [math.nan, np.float32("inf")], "b": {"c": -math.inf}, "d": np.arange(2), "e": None, 3: {1}, "f": object}
    line = encode(row)
    assert json.loads(line, parse_constant=refuse) == {
        "a": [None, "Infinity"],
        "b": {"c": "-Infinity"},
        "d": [0, 1],
        "e": None,
        "3": [1],
        "f": str(object),
    }
    assert float("Infinity") == math.inf
    assert encode({"name": "two\nlines"}).count(b"\n") == 1


def test_a_line_is_one_write(tmp_path, monkeypatch):
    written, write = [], os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: written.append(data) or write(descriptor, data))
    path = tmp_path / "progress.jsonl"
    bl.loggers.Progress(path).event("checkpoint", {"step": 3})
    bl.loggers.Progress(path).event("checkpoint", {"step": 4})
    assert len(written) == 2
    assert path.read_bytes() == b"".join(written)


def test_a_line_that_was_cut_short_stands_alone(tmp_path):
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b'{"event":"sta')
    bl.loggers.Progress(path).event("checkpoint", {"step": 3})
    torn, whole = path.read_text().splitlines()
    assert torn == '{"event":"sta'
    assert json.loads(whole)["step"] == 3


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path):
    path = tmp_path / "folder" / "progress.jsonl"
    path.parent.write_text("a file where a folder must be")
    progress = bl.loggers.Progress(path)
    with pytest.warns(UserWarning, match="cannot be written .* The run continues"):
        progress.event("checkpoint", {"step": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        progress.event("checkpoint", {"step": 2})
        path.parent.unlink()
        progress.event("checkpoint", {"step": 3})
    assert [line["step"] for line in lines(path)] == [3]


def test_a_write_that_is_cut_short_is_no_silent_loss(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    progress = bl.loggers.Progress(tmp_path / "progress.jsonl")
    with pytest.warns(UserWarning, match="only 5 of"):
        progress.event("checkpoint", {"step": 1})
    monkeypatch.undo()
    progress.event("checkpoint", {"step": 2})
    assert json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[1])["step"] == 2
