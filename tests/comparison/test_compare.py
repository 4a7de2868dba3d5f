"""Comparisons of solvers: fair budgets, the same grid, nothing run twice, clear refusals."""

import csv
import re

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._studies.records import Record, Records, write_table
from bilevel.comparison import runner
from bilevel.comparison.benchmarks import Contest, fingerprint
from bilevel.comparison.compare import _target as target_of
from bilevel.comparison.profiles import Entrant, Grid, enter, everyone, steps_for, with_rates
from bilevel.comparison.runner import Entry, diverged, final
from bilevel.problems import Ready
from command import call

SMALL = Grid((1e-2, 1e-1), (1e-1,), (1e-3,))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    known = bl.problems.opposed_slopes()
    out = tmp_path_factory.mktemp("compared")
    options = {"solvers": ["MORBiT", "StocBiO"], "calls": 400, "seeds": 2, "grid": SMALL, "automatic": ["MORBiT"]}
    return known, out, options, bl.compare(known.problem, known.x, out=out, progress=False, **options)


def test_the_budget_is_the_same_for_all(compared):
    *_, found = compared
    assert {(e.entrant.name, e.rates == "automatic") for e in found.entries} == {
        ("MORBiT", False),
        ("MORBiT", True),
        ("StocBiO", False),
    }
    for entry in found.entries:
        assert 400 - entry.entrant.calls < entry.steps * entry.entrant.calls <= 400
        assert all(run["step"][-1] == entry.steps for run in entry.runs.values())
    steps = {entry.entrant.name: entry.steps for entry in found.entries}
    assert steps["StocBiO"] < steps["MORBiT"]


def test_the_best_rates_of_the_grid_are_taken(compared):
    known, _, _, found = compared
    tuned = next(e for e in found.entries if e.entrant.name == "MORBiT" and e.rates != "automatic")
    ends = {}
    for called, rates in SMALL.rates().items():
        solver = with_rates(bl.MORBiT(), rates)
        every = max(1, tuned.steps // 50)  # both of the grid are among the best, and all draws are alike
        run = bl.solve(known.problem, solver, known.x, steps=tuned.steps, every=every, seed=10_000, progress=False)
        ends[called] = final(Record.of(run, None))
    assert tuned.rates == min(ends, key=ends.get)


def test_entries_come_best_first_and_rows_tell_all(compared):
    *_, found = compared
    rows = found.table()
    worst = [row["worst_validation"] for row in rows]
    assert worst == sorted(worst)
    assert np.isfinite(found.target)
    assert {"calls_to_target", "seconds_to_target", "state_megabytes", "diverged", "worst_test"} <= set(rows[0])
    assert "MORBiT" in found.summary()


def test_files_are_there_and_nothing_runs_twice(compared):
    known, out, options, _ = compared
    (folder,) = out.iterdir()
    for name in ("comparison.csv", "runs.csv", "comparison.png", "comparison.pdf"):
        assert (folder / name).stat().st_size > 100
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("seed-*.csv")}
    assert len(before) == 2 * 2 * (1 + 3) + 2 * 3  # rates: short, and long on three draws; seeds of three entries
    bl.compare(known.problem, known.x, out=out, progress=False, **options)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("seed-*.csv")} == before


def test_runs_of_one_problem_are_not_taken_for_those_of_another():
    known, other = bl.problems.opposed_slopes(), bl.problems.opposed_slopes((1.0, 3.0))
    names = {
        fingerprint(Ready(p, x), y) for p in (known.problem, other.problem) for x in (0.0, 1.0) for y in (None, 2.0)
    }
    assert len(names) == 8
    assert fingerprint(Ready(known.problem, 0.0), None) in names
    changed = bl.Problem(lambda x, y, b: y, lambda x, y, b: y * y, [bl.Task(jnp.ones(1), jnp.ones(1), y=jnp.ones(()))])
    again = bl.Problem(lambda x, y, b: y, lambda x, y, b: y * 2, [bl.Task(jnp.ones(1), jnp.ones(1), y=jnp.ones(()))])
    assert fingerprint(Ready(changed, 0.0), None) != fingerprint(Ready(again, 0.0), None)


def test_tables_keep_commas(tmp_path):
    write_table(
        tmp_path / "t.csv", [{"solver": "MORBiT, paper", "worst": 0.5}, {"solver": "SOBA", "worst": float("nan")}]
    )
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{"solver": "MORBiT, paper", "worst": "0.5"}, {"solver": "SOBA", "worst": "nan"}]


def test_calls_are_rows():
    rows = jnp.arange(8.0)
    task = bl.Task(train=rows, validation=rows, y=jnp.zeros(()))
    problem = bl.Problem(
        lambda x, y, batch: jnp.mean((x * y - batch) ** 2),
        lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        [task, task],
        lower_batch=4,
        upper_batch=4,
    )
    ready = Ready(problem, jnp.ones(()))
    entrant = enter("MORBiT", with_rates(bl.MORBiT(), (0.1, 0.1, 0.1)), ready)
    assert entrant.calls == 4 * 4  # four calls on batches of four rows
    assert enter("MORBiT", bl.MORBiT(), ready).calls == 5 * 4  # and the power iteration of automatic rates
    assert steps_for(entrant, 165, None) == 10
    assert steps_for(entrant, None, 10 * entrant.seconds) == 10
    assert entrant.bytes > 0


def test_everyone_is_a_min_max_method():
    assert len(everyone()) >= 18
    assert {type(solver.weighting) for solver in everyone().values()} == {bl.weightings.SimplexAscent}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"problem": "leter"}, "Did you mean 'letter'"),
        ({"problem": "ball", "calls": 0}, r"calls=0\): a budget"),
        ({"problem": "ball", "seconds": -1.0}, r"seconds=-1.0\): a budget"),
        ({"problem": "ball", "calls": 5, "seconds": 5}, "one budget, not both"),
        ({"problem": "ball", "seeds": 0}, "seeds"),
        ({"problem": "ball", "solvers": []}, "a list of names"),
        ({"problem": "ball", "solvers": [bl.Tandem()]}, "a list of names"),
        ({"problem": "ball", "solvers": {}}, "a list of names"),
        ({"problem": "ball", "solvers": 3}, "a list of names"),
        ({"problem": "ball", "solvers": ["MORBiT"], "automatic": "MORBiT"}, "automatic='MORBiT'.*a list of names"),
        ({"problem": "ball", "solvers": ["MORBIT2"]}, "did you mean MORBiT"),
        ({"problem": "ball", "solvers": ["paper", "MORBiT"]}, "does not have 'ball', only sinusoids, letter, fashion"),
        ({"problem": "ball", "solvers": ["GDA"]}, "GDA cannot run on this problem"),
        ({"problem": "ball", "solvers": ["MMB"]}, "MMB cannot run on this problem"),
        ({"problem": "sinusoids", "solvers": ["SABA"]}, "SABA cannot run on this problem: .*Generator"),
        ({"problem": "ball", "x": 1.0}, "a problem of yours"),
        ({"problem": "ball", "calls": "many"}, r"calls='many'\): a budget"),
        ({"problem": "ball", "grid": Grid((), (0.1,), (0.1,))}, "one rate or more"),
        ({"problem": "ball", "target": float("nan")}, r"target=nan\): it needs a number"),
        ({"problem": "ball", "solvers": ["MORBiT"], "automatic": ["SOBA"]}, "'SOBA', which is not among"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(options, said):
    with pytest.raises(ValueError, match=said):
        bl.compare(**options, progress=False)


def test_problems_of_yours_need_a_start():
    with pytest.raises(ValueError, match=r"compare\(x=None\)"):
        bl.compare(bl.problems.enclosing_ball().problem)
    with pytest.raises(TypeError, match="it needs a name or a"):
        bl.compare(3)


def test_the_command_says_what_is_wrong():
    ran = call("compare", "leter")
    assert ran.exit_code == 1
    assert "Did you mean 'letter'" in ran.errors
    assert "a budget is a number above 0" in call("compare", "ball", "--calls", "0").errors


def test_folders_and_solvers_of_the_wrong_kind(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it needs a folder"):
        bl.compare("ball", out=tmp_path / "file")
    with pytest.raises(TypeError, match="it needs a solver object"):
        bl.compare("ball", solvers={"mine": bl.MORBiT})


def test_a_run_that_ends_far_above_its_start_diverged():
    entrant = Entrant("SOBA", bl.SOBA(), 1.0, 1.0, 1)
    runs = [Record({"step": np.array([0, 1, 2]), "worst_validation": np.array([1.0, 1.0, end])}) for end in (2.0, 1e9)]
    entry = Entry(entrant, "given", dict(enumerate(runs)), steps=2)
    assert diverged(entry).tolist() == [False, True]
    sound = Entry(entrant, "given", {0: runs[0]}, steps=2)
    assert target_of(None, [entry, sound]) == 2.0  # what diverges is no target
    assert np.isnan(target_of(None, [entry]))


def test_a_solver_that_would_take_too_long_is_told_of(tmp_path):
    known = bl.problems.opposed_slopes()
    contest = Contest("mine", "mine", lambda seed, variant: Ready(known.problem, known.x), 10)
    for calls, why in ((10, None), (1e30, r"a step takes .* s, so that one run with this budget would take .* s")):
        budget = runner.Budget(calls, None)
        found = runner.Court(
            contest, contest.start(0, ""), None, Records(tmp_path), range(1), budget, False, print
        ).too_slow("MORBiT", bl.MORBiT())
        assert found is None if why is None else re.fullmatch(why + r"\.", found)
