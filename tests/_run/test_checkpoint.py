"""Runs that are kept as they go: resumed they are the runs that never stopped, and what does not fit is refused."""

import dataclasses
import functools
import json
import os
import re
import signal
import threading
import warnings
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bilevel as bl
from bilevel._run import checkpoint_writer, driver, identity, loop, recording, state_files
from bilevel._run.checkpoint_writer import open_checkpoints
from bilevel._run.parallel_runs import run_all
from bilevel._run.progress import Quiet
from bilevel._run.run import Run
from kept_runs import NOISY, SOLVERS, STACK, X, Y, bits, lower, same, solve, upper


def ctrl_c_at(step):
    """A callback during which Ctrl-C is pressed, once, whichever run comes there first."""
    unpressed = [step]

    def press(row):
        if row["step"] >= step and unpressed:
            unpressed.pop()
            os.kill(os.getpid(), signal.SIGINT)

    return press


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def states(folder):
    return [name for name in names(folder) if name.startswith("state-")]


@functools.cache
def whole(solver="MORBiT", **options):
    """The run that never stopped."""
    return solve(solver, **options)


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that was stopped at step 20 of 60."""
    result = solve(checkpoint=tmp_path / "run", callback=ctrl_c_at(20))
    assert (result.status, result.steps) == ("interrupted", 20)
    return tmp_path / "run"


# ------------------------------------------------------------------ the same run


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_resumed_run_is_the_run_that_never_stopped(solver, tmp_path):
    first = solve(solver, checkpoint=tmp_path, callback=ctrl_c_at(20))
    second = solve(solver, checkpoint=tmp_path, resume=True, callback=ctrl_c_at(40))
    assert [r.status for r in (first, second)] == ["interrupted"] * 2
    assert [r.steps for r in (first, second)] == [20, 40]
    assert not (tmp_path / "result.safetensors").exists()
    assert same(solve(solver, checkpoint=tmp_path, resume=True), whole(solver))


@pytest.mark.parametrize("moment", [0, 1, 7, 13, 59])
def test_a_run_may_be_cut_anywhere(moment, tmp_path, monkeypatch):
    """Between evaluations and measurements too, and before the first step."""
    compiled, halt = loop.steps, threading.Event()

    def until_then(*arguments, **options):
        after = compiled(*arguments, **options)
        if int(after.state.step) >= moment:
            halt.set()
        return after

    monkeypatch.setattr(driver, "CALL_SECONDS", 0.0)  # every call takes one step
    monkeypatch.setattr(loop, "steps", until_then)
    run = Run(NOISY, SOLVERS["MORBiT"], X, Y, 0, 60, 20, checkpoint=bl.Checkpoint(tmp_path), resume=True)
    if moment == 0:
        halt.set()
    with open_checkpoints([run]) as writers:
        assert run_all([run], Quiet(), halt, writers)[0].steps == moment
    monkeypatch.undo()
    assert same(solve(checkpoint=tmp_path, resume=True), whole())


def test_how_often_a_run_is_saved_and_shown_changes_nothing(tmp_path):
    often, by_time = (bl.Checkpoint(tmp_path / name, **o) for name, o in (("a", {"steps": 1}), ("b", {"seconds": 0})))
    for options in ({"checkpoint": often}, {"checkpoint": by_time}, {"seconds": 600.0}, {"progress": True}):
        assert same(solve(**options), whole())


def test_resumed_with_other_evaluations_it_ends_at_the_same_bits(stopped):
    last, expected = solve(checkpoint=stopped, resume=True, every=7).last, whole().last
    for a, b in zip(
        jax.tree.leaves((last.x, dict(last.y))), jax.tree.leaves((expected.x, dict(expected.y))), strict=True
    ):
        np.testing.assert_array_equal(a, b)


def test_resume_starts_goes_on_and_returns_what_is_there(tmp_path):
    """The same line in a job that is started again and again."""
    options = {"checkpoint": tmp_path / "new" / "run", "resume": True}
    solve(**options, callback=ctrl_c_at(20))
    ended = solve(**options)
    kept = sorted((path.name, path.stat().st_mtime_ns) for path in options["checkpoint"].iterdir())
    again = solve(**options, callback=lambda row: pytest.fail("it took steps"))
    assert same(ended, again)
    assert again.problem is NOISY
    assert again.solver == SOLVERS["MORBiT"]
    files = sorted((path.name, path.stat().st_mtime_ns) for path in options["checkpoint"].iterdir())
    assert [f for f in files if f[0] != "lock"] == [f for f in kept if f[0] != "lock"]


def test_the_result_is_in_the_folder_once_the_run_has_ended(stopped):
    assert "result.safetensors" not in names(stopped)
    result = solve(checkpoint=stopped, resume=True)
    assert bl.load(stopped / "result.safetensors").summary() == result.summary()


def test_a_resumed_run_compiles_no_steps_and_measures_nothing_again(stopped, monkeypatch):
    traced = loop.steps._cache_size()
    monkeypatch.setattr(bl.Solver, "init", lambda *a, **o: pytest.fail("it was started again"))
    solve(checkpoint=stopped, resume=True)
    assert loop.steps._cache_size() == traced


def test_the_clock_goes_on(stopped):
    before = bl_state(stopped).document["counters"]["seconds"]
    history = solve(checkpoint=stopped, resume=True).history
    assert np.all(np.diff(history.seconds) >= 0)
    assert history.seconds[-1] > before > 0


def bl_state(folder):
    return state_files.read(folder / states(folder)[-1])


def test_after_a_callback_that_raised_the_run_goes_on_and_the_callback_sees_that_evaluation_again(tmp_path):
    seen = []

    def callback(row):
        seen.append(row["step"])
        if seen == [20, 40]:
            raise OSError("no space left")

    with pytest.warns(RuntimeWarning, match="OSError: no space left.*resume=True"):
        first = solve(checkpoint=tmp_path, callback=callback)
    assert (first.status, first.steps) == ("callback failed", 40)
    assert same(solve(checkpoint=tmp_path, resume=True, callback=callback), whole())
    assert seen == [20, 40, 40, 60]


@pytest.mark.parametrize("end", ["patience", "callback"])
def test_a_run_that_has_ended_early_has_ended(end, tmp_path):
    early = {"patience": 1} if end == "patience" else {"callback": lambda row: row["step"] >= 20}
    solver = SOLVERS["MORBiT with given rates"].replace(upper_lr=1.5)
    ended = solve(solver, checkpoint=tmp_path, **early)
    assert ended.status == "stopped early"
    again = solve(solver, checkpoint=tmp_path, resume=True)
    assert same(ended, again)
    assert again.message == ended.message


def test_a_run_that_has_diverged_has_ended(tmp_path):
    solver = SOLVERS["MORBiT with given rates"].replace(upper_lr=1e30)
    with pytest.warns(UserWarning, match="diverged"):
        ended = solve(solver, checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="diverged"):
        again = solve(solver, checkpoint=tmp_path, resume=True)
    assert same(ended, again)


# ------------------------------------------------------------------ many seeds


def test_seeds_have_a_folder_each_and_all_are_resumed(tmp_path):
    parts = solve(seeds=3, checkpoint=tmp_path, callback=ctrl_c_at(20))
    statuses = {part.status for part in parts}
    assert "interrupted" in statuses <= {"interrupted", "finished"}  # a seed may be at its end before it notices
    assert names(tmp_path) == ["seed-0", "seed-1", "seed-2"]
    for seed, result in enumerate(solve(seeds=3, checkpoint=tmp_path, resume=True)):
        assert same(result, whole(seed=seed))


def test_a_batch_goes_on_although_its_seeds_are_at_different_steps(tmp_path):
    """As they are where a process was killed while it wrote one seed's state after the other."""

    plain = [Run(NOISY, SOLVERS["MORBiT"], X, Y, seed, 60, 20) for seed in range(3)]

    def batch(resume, halt=None, callback=None):
        runs = [
            dataclasses.replace(
                run, checkpoint=bl.Checkpoint(tmp_path / str(run.seed)), resume=resume, callback=callback
            )
            for run in plain
        ]
        with open_checkpoints(runs) as writers:
            return driver.run_lanes(runs, Quiet().split(3), halt, writers)

    together = driver.run_lanes(plain, Quiet().split(3))
    halt = threading.Event()
    batch(False, halt, lambda row: halt.set())
    for seed, until in ((0, 20), (1, 40)):
        solve(seed=seed, checkpoint=tmp_path / str(seed), resume=True, callback=ctrl_c_at(until))
    resumed = batch(True)
    assert [r.status for r in resumed] == ["finished"] * 3
    for a, b in zip(resumed, together, strict=True):
        np.testing.assert_allclose(a.x, b.x, rtol=1e-9)
        np.testing.assert_array_equal(a.history.step, b.history.step)
        np.testing.assert_allclose(a.random.x, b.random.x, rtol=1e-9)


def test_a_seed_that_is_given_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"solve\(seeds=\[1, 1\], checkpoint=\.\.\.\): a seed is given twice"):
        solve(seeds=[1, 1], checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ refusals


def test_a_folder_that_holds_a_run_is_refused_without_resume(stopped):
    with pytest.raises(FileExistsError, match=r"there is a run already\. Pass resume=True"):
        solve(checkpoint=stopped)


def problem(**options):
    return bl.Problem(upper, lower, **{"tasks": STACK, "lower_batch": 2, "upper_batch": 2} | options)


def other_lower(x, y, batch):
    return lower(x, y, batch)


OTHER = {
    "steps": ({"steps": 50}, "it has steps=60 and this one steps=50"),
    "seed": ({"seed": 3}, "it has seed=0 and this one seed=3"),
    "x": ({"x": X + 1}, "its x starts elsewhere"),
    "y": ({"y": Y + 1}, "its y starts elsewhere"),
    "solver": ({"solver": bl.Tandem()}, r"it has solver=MORBiT\(.* and this one solver=Tandem\("),
    "rate": ({"solver": bl.MORBiT(lower_lr=0.25)}, r"lower_lr=None.* and this one .*lower_lr=0.25"),
    "rule": ({"solver": bl.MORBiT(lower_rule=optax.adam)}, r"alias\.sgd.* and this one .*alias\.adam"),
    "data": ({"problem": problem(tasks=dataclasses.replace(STACK, train=STACK.train + 1))}, "its data are others"),
    "shapes": ({"problem": problem(tasks=dataclasses.replace(STACK, train=STACK.train[:, :7]))}, "other shapes"),
    "names": (
        {"problem": problem(tasks=dataclasses.replace(STACK, names=["a", "b", "c"]))},
        "tasks have other names",
    ),
    "function": ({"problem": bl.Problem(upper, other_lower, STACK, None, 2, 2)}, r"functions=.*lower.*other_lower"),
    "constraint": (
        {"problem": problem(constraint=bl.constraints.NonNegative())},
        r"this one constraint=NonNegative",
    ),
    "batches": ({"problem": problem(lower_batch=3)}, r"batches=lower_batch=2.* and this one batches=lower_batch=3"),
    "no batches": (
        {"problem": problem(lower_batch=None, upper_batch=None)},
        r"batches=lower_batch=2, upper_batch=2 and this one batches=none[.;]",
    ),
}


@pytest.mark.parametrize(("options", "said"), OTHER.values(), ids=OTHER)
def test_another_run_is_refused_and_the_refusal_says_what_differs(options, said, stopped):
    before = names(stopped)
    with pytest.raises(ValueError, match=said) as caught:
        solve(checkpoint=stopped, resume=True, **options)
    assert "another folder" in str(caught.value)
    assert names(stopped) == before
    assert same(solve(checkpoint=stopped, resume=True), whole())


@pytest.mark.parametrize("at", [0, 30, 150, 299])
def test_of_long_texts_a_refusal_shows_where_they_differ(at):
    one = "".join(chr(97 + i % 26) for i in range(300))
    other = one[:at] + "!" + one[at + 1 :]
    with pytest.raises(identity.DifferentRunError) as caught:
        identity.check_same("It", {"solver": one}, {"solver": other})
    shown = re.search(r"it has solver=(\S+) and this one solver=(\S+)\. Use the arguments", str(caught.value))
    assert shown is not None
    its, own = shown.groups()
    assert (its != own, "!" in own, "!" in its) == (True, True, False)
    assert max(len(its), len(own)) < 90


def scaled(factor):
    return lambda x, y, batch: factor * lower(x, y, batch)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (optax.linear_schedule(0.1, 0.0, 10), optax.linear_schedule(0.2, 0.0, 10)),
        (functools.partial(optax.sgd, momentum=0.9), functools.partial(optax.sgd, momentum=0.8)),
        (scaled(1.0), scaled(2.0)),
        (scaled(np.ones(2)), scaled(np.zeros(2))),
        (upper, lower),
        (bl.MORBiT(0.1), bl.MORBiT(0.2)),
        (np.arange(3), np.arange(3.0)),
    ],
)
def test_texts_tell_values_apart_and_are_the_same_in_every_process(one, other):
    assert identity.text(one) != identity.text(other)
    assert " at 0x" not in identity.text(one) + identity.text(other)


def test_texts_are_of_what_a_function_is_made_of_not_of_the_object():
    assert identity.text(scaled(2.0)) == identity.text(scaled(2.0))
    assert identity.text(optax.linear_schedule(0.1, 0.0, 10)) == identity.text(optax.linear_schedule(0.1, 0.0, 10))

    def recursive(n):
        return seen.append(n) or recursive(n - 1)

    seen = []
    before = identity.text(recursive)
    seen.append(1)  # what changes while it is used is no part of what it is
    assert identity.text(recursive) == before


def test_another_environment_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch):
    solve(seeds=2, checkpoint=tmp_path, callback=ctrl_c_at(20))
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " --other")
    with pytest.warns(UserWarning, match=r"started with XLA_FLAGS .*now .*--other") as caught:
        results = solve(seeds=2, checkpoint=tmp_path, resume=True)
    assert len(caught) == 1
    assert [result.status for result in results] == ["finished"] * 2


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"checkpoint": 3}, TypeError, r"solve\(checkpoint=\.\.\.\) got int"),
        ({"checkpoint": ""}, TypeError, r"Checkpoint\(folder=''\)"),
        ({"checkpoint": bl.Checkpoint("a", seconds=-1)}, ValueError, r"Checkpoint\(seconds=-1\)"),
        ({"checkpoint": bl.Checkpoint("a", steps=0)}, ValueError, r"Checkpoint\(steps=0\)"),
        ({"checkpoint": bl.Checkpoint("a", keep=0)}, ValueError, r"Checkpoint\(keep=0\)"),
        ({"resume": True}, ValueError, r"solve\(resume=True\) needs checkpoint="),
        ({"resume": 1}, TypeError, r"solve\(resume=1\)"),
        ({"seconds": 0}, ValueError, r"solve\(seconds=0\)"),
    ],
)
def test_arguments_that_make_no_sense(options, error, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=said):
        solve(**options)
    assert names(tmp_path) == []


# ------------------------------------------------------------------ the files of a folder


class AtOnce:
    """Writes before the run goes on, so that no state is put off because the last one is still being written."""

    def __init__(self, *arguments, **options):
        pass

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done

    def shutdown(self):
        pass


@pytest.mark.parametrize(("keep", "kept"), [(3, (50, 55, 60)), (1, (60,))])
def test_the_newest_states_stay(keep, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "ThreadPoolExecutor", AtOnce)
    solve(checkpoint=bl.Checkpoint(tmp_path, steps=5, keep=keep), every=5)
    assert states(tmp_path) == [f"state-{step:012d}.safetensors" for step in kept]


def test_run_json_says_what_is_run(stopped):
    said = json.loads((stopped / "run.json").read_text())
    assert (said["format"], said["version"], said["steps"], said["seed"]) == ("bilevel.run", 1, 60, 0)
    assert said["tasks"] == ["north", "east", "south"]
    assert said["environment"]["jax"] == jax.__version__


def test_what_killed_writers_left_is_swept_and_nothing_else(stopped):
    left, others = stopped / ".bilevel-0123456789abcdef.tmp", [stopped / "notes.tmp", stopped / ".bilevel-notes.tmp"]
    for path in (left, *others):
        path.write_bytes(b"half a state")
    solve(checkpoint=stopped, resume=True)
    assert not left.exists()
    assert all(path.exists() for path in others)


def flip(content):
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


DAMAGE = {
    "flipped": flip,
    "truncated": lambda c: c[: len(c) // 2],
    "empty": lambda c: b"",
    "other": lambda c: b"x" * 99,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_state_is_passed_over_for_an_older_one(damage, tmp_path):
    solve(checkpoint=bl.Checkpoint(tmp_path), callback=ctrl_c_at(20))
    solve(checkpoint=bl.Checkpoint(tmp_path), resume=True, callback=ctrl_c_at(40))
    newest = tmp_path / "state-000000000040.safetensors"
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.warns(RuntimeWarning, match="a state cannot be read, so an older one is tried.*0040"):
        resumed = solve(checkpoint=tmp_path, resume=True)
    assert same(resumed, whole())


def test_without_a_state_that_can_be_read_a_run_starts_again(stopped):
    for name in states(stopped):
        (stopped / name).write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="cannot be read"):
        assert same(solve(checkpoint=stopped, resume=True), whole())


def test_a_state_of_another_run_is_passed_over(stopped, tmp_path):
    solve(seed=1, checkpoint=tmp_path / "other", callback=ctrl_c_at(40))
    os.replace(tmp_path / "other" / "state-000000000040.safetensors", stopped / "state-000000000040.safetensors")
    with pytest.warns(RuntimeWarning, match="is of another run"):
        assert same(solve(checkpoint=stopped, resume=True), whole())


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": "bilevel.run", "version": "x"}', b"\xff\xfe"])
def test_a_damaged_run_json_is_refused(content, stopped):
    (stopped / "run.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"its run.json is damaged, or not of a run"):
        solve(checkpoint=stopped, resume=True)


def test_a_folder_of_a_newer_version_and_states_without_a_run_are_refused(stopped):
    said = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(said | {"version": 2}))
    with pytest.raises(ValueError, match="a newer bilevel wrote it"):
        solve(checkpoint=stopped, resume=True)
    (stopped / "run.json").unlink()
    with pytest.raises(ValueError, match=r"states of a run, but no run.json"):
        solve(checkpoint=stopped, resume=True)


# ------------------------------------------------------------------ leaves


class Weak(SOLVERS["MORBiT with given rates"].__class__):
    """Carries what the files must hold: a key, small floats, a weakly typed number."""

    def start(self, problem, x, y, key, steps):
        memory = {"key": key, "half": jnp.arange(3, dtype=jnp.bfloat16), "a/b": 1.5, "a": {"b": jnp.uint8(3)}}
        return super().start(problem, x, y, key, steps)._replace(memory=memory)

    def step(self, problem, state, key):
        after, info = super().step(problem, state, key)
        key, half = jax.random.fold_in(state.memory["key"], 1), state.memory["half"] + jnp.bfloat16(0.5)
        noise = 1e-3 * jax.random.normal(key, dtype=state.x.dtype)
        memory = state.memory | {"key": key, "half": half, "a/b": state.memory["a/b"] * 0.5}
        return after._replace(memory=memory, x=after.x + noise), info


CARRIES = bl.part(Weak)(0.1, 0.5)


def test_keys_small_floats_and_weak_types_come_back_as_they_were(tmp_path):
    solve(CARRIES, checkpoint=tmp_path, callback=ctrl_c_at(20))
    run = Run(NOISY, CARRIES, X, Y, 0, 60, 20)
    reached = state_files.restore(bl_state(tmp_path), state_files.outline(run))
    memory = reached.carry.state.memory
    assert (memory["key"].dtype, memory["half"].dtype) == (jax.random.key(0).dtype, jnp.bfloat16)
    assert memory["a/b"].weak_type
    np.testing.assert_array_equal(memory["half"].astype(float), np.arange(3) + 10.0)
    assert int(memory["a"]["b"]) == 3
    assert same(solve(CARRIES, checkpoint=tmp_path, resume=True), solve(CARRIES))


def test_a_state_comes_back_bit_for_bit(tmp_path):
    solve(checkpoint=tmp_path)
    content, run = bl_state(tmp_path), Run(NOISY, SOLVERS["MORBiT"], X, Y, 0, 60, 20)
    again = state_files.take(run, state_files.restore(content, state_files.outline(run)))
    assert json.loads(json.dumps(again.document)) == {name: content.document[name] for name in again.document}
    assert again.arrays.keys() == content.arrays.keys()
    for name, array in content.arrays.items():
        assert np.asarray(again.arrays[name]).tobytes() == array.tobytes(), name


def test_a_leaf_that_does_not_fit_is_named(tmp_path):
    solve(checkpoint=tmp_path)
    content = bl_state(tmp_path)
    needed = state_files.outline(Run(NOISY, SOLVERS["MORBiT"], X.astype("float32"), Y, 0, 60, 20))
    with pytest.raises(ValueError, match=r"its leaf '\S+/x' is float64\[\], and this run needs float32\[\]"):
        state_files.restore(content, needed)
    needed = state_files.outline(Run(NOISY, SOLVERS["Tandem"], X, Y, 0, 60, 20))
    with pytest.raises(ValueError, match="leaf 'carry/state/"):
        state_files.restore(content, needed)


def test_a_run_that_went_back_is_resumed_with_its_smaller_rates(tmp_path):
    policy, solver = bl.divergence.SmallerRates(0.05), bl.MORBiT(0.1, 1e3)
    options = {"steps": 300, "every": 100, "on_divergence": policy}
    expected = solve(solver, **options)
    assert expected.divergences
    assert expected.status == "finished"
    often = bl.Checkpoint(tmp_path, steps=10)
    for step in (100, 200):
        solve(solver, checkpoint=often, resume=True, callback=ctrl_c_at(step), **options)
    resumed = solve(solver, checkpoint=often, resume=True, **options)
    assert same(resumed, expected)
    assert resumed.divergences == expected.divergences


def test_states_beyond_where_a_run_went_back_to_are_removed(tmp_path):
    """They would be taken for the newest ones."""
    run = Run(NOISY, SOLVERS["MORBiT"], X, Y, 0, 60, 20, checkpoint=bl.Checkpoint(tmp_path))
    with open_checkpoints([run]) as [writer]:
        reached = recording.begin(writer._run)
        for step in (10, 20, 30, 40, 15):
            writer.stop(reached._replace(step=step))
    assert states(tmp_path) == ["state-000000000015.safetensors"]


def test_models_with_functions_in_them_are_resumed(tmp_path):
    def deep(x, y, batch):
        return jnp.mean((x["activation"](y) - batch) ** 2) + x["slope"] ** 2

    def shallow(x, y, batch):
        return jnp.mean((y - x["slope"] - batch) ** 2)

    options = {"problem": bl.Problem(deep, shallow, STACK), "x": {"slope": X, "activation": jnp.tanh}}
    solver = "MORBiT with given rates"
    solve(solver, checkpoint=tmp_path, callback=ctrl_c_at(20), **options)
    assert same(solve(solver, checkpoint=tmp_path, resume=True, **options), solve(solver, **options))


def test_the_comparison_of_runs_can_fail():
    assert not same(whole(), whole(seed=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(jax.tree.leaves(bits(whole()))) > 30
