"""Comparisons of solvers: fair budgets, the same grid, nothing run twice, clear refusals."""

import csv
import re
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.studies.catalogue import GivenRates, with_rates
from bilevel.studies.comparison.benchmarks import all_solvers, fingerprint
from bilevel.studies.comparison.candidates import Candidate, Profile
from bilevel.studies.comparison.comparing import default_target
from bilevel.studies.comparison.runner import Budget, Grid, Runner, plan
from bilevel.studies.problems import Ready
from bilevel.studies.records import Experiment, MemoryRecords, Record, write_table
from bilevel.studies.statistics import score
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
    assert {(e.name, e.rates == "automatic") for e in found.candidates} == {
        ("MORBiT", False),
        ("MORBiT", True),
        ("StocBiO", False),
    }
    for candidate in found.candidates:
        used = candidate.profile.calls_at(candidate.steps)
        assert used <= 400
        assert used > 0.9 * 400 - candidate.profile.calls or candidate.rates == "automatic"  # which measures too
        assert all(run["step"][-1] == candidate.steps for run in candidate.runs.values())
    steps = {candidate.name: candidate.steps for candidate in found.candidates if candidate.rates != "automatic"}
    assert steps["StocBiO"] < steps["MORBiT"]


def test_the_best_rates_of_the_grid_are_taken(compared):
    known, _, _, found = compared
    tuned = next(e for e in found.candidates if e.name == "MORBiT" and e.rates != "automatic")
    ends = {}
    for called, rates in SMALL.rates().items():
        solver = with_rates(bl.MORBiT(), GivenRates(*rates, estimator=rates[1]))
        every = max(1, tuned.steps // 50)  # both of the grid are among the best, and all draws are alike
        run = bl.solve(known.problem, solver, known.x, steps=tuned.steps, every=every, seed=10_000, progress=False)
        ends[called] = score(Record.of(run, None), tuned.steps)
    assert tuned.rates == min(ends, key=ends.get)


def test_candidates_come_best_first_with_all_their_numbers(compared):
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
    assert len(before) > 2 * 2 * (1 + 3) + 2 * 3  # rates: short, and long on three draws; seeds of three candidates
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
    tuned = plan(with_rates(bl.MORBiT(), GivenRates(0.1, 0.1, 0.1, 0.1)), ready, Budget(calls=165))
    assert (tuned.steps, tuned.profile.calls) == (10, 4 * 4)  # four calls on batches of four rows
    assert tuned.profile.bytes > 0
    along_gradients = plan(bl.Tandem(lower=bl.lower.Gradient()), ready, Budget(steps=70)).profile
    # Twenty power iterations before the first step and one in every step, for automatic rates.
    np.testing.assert_array_equal(along_gradients.calls_at(np.arange(71)), 20 * 4 + np.arange(71) * 5 * 4)
    # A Hessian is a product for each number of y, here one, and needs no power iterations.
    tandem = plan(bl.Tandem(), ready, Budget(steps=70)).profile
    np.testing.assert_array_equal(tandem.calls_at(np.arange(71)), np.arange(71) * 5 * 4)
    assert plan(bl.Tandem(), ready, Budget(seconds=1e-9)).steps == 1


def test_all_solvers_are_min_max_methods():
    assert len(all_solvers()) >= 18
    assert {type(solver.weighting) for solver in all_solvers().values()} == {bl.weightings.SimplexAscent}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"problem": "leter"}, "Did you mean letter"),
        ({"problem": "ball", "calls": 0}, r"calls=0\): it needs a positive number"),
        ({"problem": "ball", "seconds": -1.0}, r"seconds=-1.0\): it needs a positive number"),
        ({"problem": "ball", "calls": 5, "seconds": 5}, "one budget, not both"),
        ({"problem": "ball", "seeds": 0}, "seeds"),
        ({"problem": "ball", "solvers": []}, "a list of names"),
        ({"problem": "ball", "solvers": [bl.Tandem()]}, "a list of names"),
        ({"problem": "ball", "solvers": {}}, "a list of names"),
        ({"problem": "ball", "solvers": 3}, "a list of names"),
        ({"problem": "ball", "solvers": ["MORBiT"], "automatic": "MORBiT"}, "automatic='MORBiT'.*a list of names"),
        ({"problem": "ball", "solvers": ["MORBIT2"]}, "Did you mean MORBiT"),
        (
            {"problem": "ball", "solvers": ["paper", "MORBiT"]},
            "not in the paper, which has only sinusoids, letter, fashion",
        ),
        ({"problem": "ball", "solvers": ["GDA"]}, "GDA cannot run on this problem"),
        ({"problem": "ball", "solvers": ["MMB"]}, "MMB cannot run on this problem"),
        ({"problem": "sinusoids", "solvers": ["SABA"]}, "SABA cannot run on this problem: .*Generator"),
        ({"problem": "ball", "x": 1.0}, "a problem of yours"),
        ({"problem": "ball", "calls": "many"}, r"calls='many'\): it needs a positive number"),
        ({"problem": "ball", "grid": Grid((), (0.1,), (0.1,))}, "one rate or more"),
        ({"problem": "ball", "target": float("nan")}, r"target=nan\): it needs a finite number"),
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
    for arguments, code, said in (
        (["leter"], 2, "Did you mean letter?"),
        (["ball", "--solver", "MORBIT2"], 2, "Did you mean MORBiT?"),
        (["ball", "--calls", "0"], 1, "compare(calls=0.0): it needs a positive number"),
    ):
        ran = call("compare", *arguments)
        assert ran.exit_code == code
        assert said in ran.errors
        assert re.fullmatch(r"error: [^\n]+\n", ran.errors)


def test_the_jobs_of_an_array_make_what_the_last_command_looks_for(tmp_path):
    """The printed script, run by a shell as Slurm would run it, with a command that only says what it was given."""
    said = tmp_path / "bilevel"
    said.write_text('#!/bin/sh\necho "$@"\n')
    said.chmod(0o755)
    options = ["--seeds=1", "--calls=1234567", "--target=0.5", f"--out={tmp_path / 'a b'}"]
    script = call("compare", "ball", *options, "--solver=BSA", "--solver=MORBiT", "--automatic=BSA", "--slurm-array")
    same = f"compare ball --seeds 1 --calls 1234567.0 --target 0.5 {{}} --quiet --out {tmp_path / 'a b'}"
    for number, solver in enumerate(("--solver=BSA --automatic=BSA", "--solver=MORBiT")):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(number)}
        ran = subprocess.run(["sh", "-c", script.stdout], capture_output=True, text=True, env=environment, check=True)
        assert ran.stdout.strip() == same.format(solver)
    whole = same.replace(str(tmp_path / "a b"), f"'{tmp_path / 'a b'}'")
    whole = whole.format("--solver=BSA --solver=MORBiT --automatic=BSA")
    assert f"#     bilevel {whole}\n" in script.stdout
    assert "#SBATCH --array=0-1\n" in script.stdout
    everyone = call("compare", "ball", "--slurm-array").stdout
    assert f"--array=0-{len(all_solvers()) - 1}\n" in everyone
    assert "#     bilevel compare ball --seeds 10 --quiet" in everyone


def test_folders_and_solvers_of_the_wrong_kind(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="it needs a folder"):
        bl.compare("ball", out=tmp_path / "file")
    with pytest.raises(TypeError, match="it needs a solver object"):
        bl.compare("ball", solvers={"mine": bl.MORBiT})


def losses(*values):
    return Record({"step": np.arange(len(values)), "worst_validation": np.array(values)})


def test_a_run_that_ends_far_above_its_start_diverged():
    runs = dict(enumerate([losses(1.0, 1.0, 2.0), losses(1.0, 1.0, 1e9)]))
    candidate = Candidate("SOBA", Profile(1.0, 1.0, 1), "as given", runs, steps=2)
    assert Candidate("SOBA", Profile(1.0, 1.0, 1), "as given", {**runs, 2: runs[0]}, steps=2).worst == 2.0
    assert candidate.diverged.tolist() == [False, True]
    assert np.isinf(candidate.worst)  # the median of 2 and infinity
    sound = candidate._replace(runs={0: runs[0]})
    assert default_target([candidate, sound]) == 2.0  # what diverges is no target
    assert np.isnan(default_target([candidate]))
    assert sorted([candidate, sound], key=lambda c: c.order) == [sound, candidate]


def runner(ready, calls, seeds=1):
    benchmark = Experiment("mine", "mine", lambda seed, variant: ready, 10)
    return Runner(benchmark, ready, MemoryRecords(), range(seeds), Budget(calls, None), False, print)


def test_a_solver_that_would_take_too_long_is_reported(slopes, monkeypatch):
    assert runner(slopes, 10).too_slow("MORBiT", bl.MORBiT()) is None
    why = r"a step takes .* s, so that one run with this budget would take .* s\."
    monkeypatch.setattr("bilevel.studies.comparison.runner.SLOWEST", 0.0)
    assert re.fullmatch(why, runner(slopes, 10).too_slow("MORBiT", bl.MORBiT()))


def test_a_budget_beyond_all_counting_is_refused(slopes):
    with pytest.raises(ValueError, match=r"calls=1e\+30\): that is more than 2,000,000 steps of MORBiT"):
        bl.compare(*slopes, solvers=["MORBiT"], calls=1e30, seeds=1, progress=False)


def test_rates_that_diverge_are_not_preferred(slopes):
    """The first loss is finite and low: a run that ends at once must not be scored by it."""
    grid = Grid((1e30, 1e-2), (1e-1,), (1e-3,))
    chosen = runner(slopes, 400).tuned("MORBiT", bl.MORBiT(), grid)
    assert float(chosen.rates.split()[0]) <= 1e-2
    assert not chosen.diverged.any()


def test_a_run_that_cannot_begin_within_the_budget_is_left_out(slopes):
    """Twenty products before the first step, by which the series scales itself."""
    found = bl.compare(*slopes, solvers=["StocBiO", "MORBiT"], calls=19, seeds=1, grid=SMALL, progress=False)
    assert {candidate.name for candidate in found.candidates} == {"MORBiT"}
    why = "before its first step it makes 20 calls per task, more than the budget of 19."
    assert found.skipped["StocBiO"] == why
