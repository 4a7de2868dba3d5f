"""States whose arrays are in parts, by Orbax: the same runs, on any devices, and what is damaged is passed over."""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel._run import sharded_leaves, state_files
from bilevel._run.checkpoints import OrbaxWriter
from bilevel._run.run import Run
from clusters import free_port, wait_for
from kept_runs import NOISY, SOLVERS, X, Y, same, solve

pytest.importorskip("orbax.checkpoint")
TESTS = Path(__file__).parent.parent
ORBAX = bl.checkpoints.Orbax()


def kept(folder, **options):
    return bl.Checkpoint(folder, files=ORBAX, **options)


def ctrl_c_at(step):
    unpressed = [step]

    def press(row):
        if row["step"] >= step and unpressed:
            unpressed.pop()
            os.kill(os.getpid(), signal.SIGINT)

    return press


def names(folder, end=""):
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(end))


@functools.cache
def whole(solver="MORBiT with given rates"):
    return solve(solver)


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run with states at steps 20 and 40 of 60."""
    for step in (20, 40):
        solve("MORBiT with given rates", checkpoint=kept(tmp_path), resume=True, callback=ctrl_c_at(step))
    assert names(tmp_path, ".safetensors") == [f"state-{step:012d}.safetensors" for step in (20, 40)]
    assert [name[:18] for name in names(tmp_path, ".orbax")] == ["state-000000000020", "state-000000000040"]
    return tmp_path


def resumed(folder, **options):
    return solve("MORBiT with given rates", checkpoint=kept(folder), resume=True, **options)


# ------------------------------------------------------------------ the same run


class Memory(SOLVERS["MORBiT with given rates"].__class__):
    """Carries what is not written like any array: keys, small floats, a weakly typed number, no numbers at all."""

    def start(self, problem, x, y, key, steps):
        memory = {"key": key, "half": jnp.arange(3, dtype=jnp.bfloat16), "weak": 1.5, "none": jnp.zeros((0, 2))}
        return super().start(problem, x, y, key, steps)._replace(memory=memory)

    def step(self, problem, state, key):
        after, info = super().step(problem, state, key)
        key, half = jax.random.fold_in(state.memory["key"], 1), state.memory["half"] + jnp.bfloat16(0.5)
        noise = 1e-3 * jax.random.normal(key, dtype=state.x.dtype)
        memory = state.memory | {"key": key, "half": half, "weak": state.memory["weak"] * 0.5}
        return after._replace(memory=memory, x=after.x + noise), info


@pytest.mark.parametrize("solver", ["MORBiT", "SABA", bl.part(Memory)(0.1, 0.5)], ids=["MORBiT", "SABA", "keys"])
def test_a_resumed_run_is_the_run_that_never_stopped(solver, tmp_path):
    begun = solve(solver, checkpoint=kept(tmp_path, steps=7), callback=ctrl_c_at(20))
    assert (begun.status, begun.steps) == ("interrupted", 20)
    assert same(solve(solver, checkpoint=kept(tmp_path), resume=True), solve(solver))


def test_a_state_of_one_kind_is_gone_on_with_by_the_other(tmp_path):
    for i, (first, second) in enumerate([(ORBAX, bl.checkpoints.OneFile()), (bl.checkpoints.OneFile(), ORBAX)]):
        given = {"solver": "MORBiT with given rates", "resume": True}
        solve(**given, checkpoint=bl.Checkpoint(tmp_path / str(i), files=first), callback=ctrl_c_at(20))
        assert same(solve(**given, checkpoint=bl.Checkpoint(tmp_path / str(i), files=second)), whole())
        assert [name[:18] for name in names(tmp_path / str(i), ".orbax")] == [f"state-0000000000{20 + 40 * i}"]


def test_seeds_in_threads_are_kept(tmp_path):
    solve("MORBiT with given rates", seeds=2, checkpoint=kept(tmp_path, steps=5), callback=ctrl_c_at(20))
    again = solve("MORBiT with given rates", seeds=2, checkpoint=kept(tmp_path), resume=True)
    assert same(again[0], whole())
    assert same(again[1], solve("MORBiT with given rates", seed=1))


@pytest.mark.filterwarnings("ignore:Sharding info not provided")
def test_orbax_itself_reads_the_arrays(stopped):
    import orbax.checkpoint as ocp

    document = state_files.read(stopped / "state-000000000040.safetensors").document
    arrays = ocp.PyTreeCheckpointer().restore(stopped / document["arrays"])
    run = Run(NOISY, SOLVERS["MORBiT with given rates"], X, Y, 0, 60, 20, checkpoint=kept(stopped))
    reached = sharded_leaves.restored(run, state_files.read(stopped / "state-000000000040.safetensors"), stopped)
    [[key, start]] = document["parts"]["carry/state/y/groups/0"]["pieces"]
    assert start == 0
    np.testing.assert_array_equal(arrays[key], reached.carry.state.y.groups[0])


# ------------------------------------------------------------------ the folder


def test_the_newest_states_stay_and_no_arrays_without_a_state(tmp_path):
    solve("MORBiT with given rates", checkpoint=kept(tmp_path, steps=1, keep=2))
    states = [name.removesuffix(".safetensors") for name in names(tmp_path, ".safetensors") if name[0] == "s"]
    assert len(states) == 2
    assert states[-1] == "state-000000000060"
    assert [name[:18] for name in names(tmp_path, ".orbax")] == states


def flipped(place):
    largest = max((path for path in place.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = largest.read_bytes()
    middle = len(content) // 2
    largest.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])


def truncated(place):
    largest = max((path for path in place.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flipped, truncated, shutil.rmtree])
def test_a_damaged_state_is_passed_over_for_an_older_one(damage, stopped):
    damage(stopped / names(stopped, ".orbax")[-1])
    with pytest.warns(RuntimeWarning, match="a state cannot be read, so an older one is tried"):
        assert same(resumed(stopped), whole())
    aside = names(stopped, ".unreadable")
    assert "state-000000000040.unreadable" in aside
    assert len(aside) == (1 if damage is shutil.rmtree else 2)


def test_what_killed_writers_left_is_swept_and_nothing_else(stopped):
    newest = stopped / names(stopped, ".orbax")[-1]
    unfinished = stopped / f"{newest.name[:19]}01234567.orbax.orbax-checkpoint-tmp-1"
    without_a_state, other = stopped / "state-000000000050-01234567.orbax", stopped / "mine.orbax"
    for path in (unfinished, without_a_state, other):
        shutil.copytree(newest, path)
    resumed(stopped, callback=ctrl_c_at(60))
    assert not unfinished.exists()
    assert not without_a_state.exists()
    assert other.exists()


def test_a_state_without_its_file_does_not_count(stopped):
    (stopped / "state-000000000040.safetensors").unlink()
    seen = []
    assert same(resumed(stopped, callback=lambda row: seen.append(row["step"])), whole())
    assert seen == [40, 60]


def test_what_cannot_be_written_ends_no_run(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(OrbaxWriter, "_end", full)
    with pytest.warns(RuntimeWarning, match=r"its state could not be written \(no space left\)"):
        result = solve("MORBiT with given rates", checkpoint=kept(tmp_path))
    assert same(result, whole())
    assert names(tmp_path, "0.safetensors") == []


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        ("orbax", TypeError, r"Checkpoint\(files='orbax'\).*bl\.checkpoints\.OneFile\(\)"),
        (bl.checkpoints.Orbax(seconds=0), ValueError, r"Orbax\(seconds=0\)"),
    ],
)
def test_files_that_make_no_sense(files, error, said, tmp_path):
    with pytest.raises(error, match=said):
        solve(checkpoint=bl.Checkpoint(tmp_path / "run", files=files))
    assert names(tmp_path) == []


def test_without_orbax_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match=r'pip install "bilevel\[orbax\]"'):
        solve(checkpoint=kept(tmp_path / "run"))
    assert names(tmp_path) == []


# ------------------------------------------------------------------ several processes


class Job:
    """Processes that make one run, on loopback."""

    def __init__(self, folder, out, processes, devices=1, **asked):
        address = f"127.0.0.1:{free_port()}"
        own = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_NUM_CPU_DEVICES": str(devices)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": own}
        script = [sys.executable, "-W", "error", str(TESTS / "kept_in_processes.py"), str(folder), str(out)]
        each = [asked | {"address": address, "processes": processes, "process": rank} for rank in range(processes)]
        self.processes = [subprocess.Popen([*script, json.dumps(one)], **pipes) for one in each]

    def end(self, seconds=300):
        """What they said, and their exit codes."""
        try:
            said = [process.communicate(timeout=seconds)[0] for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
        return said, [process.returncode for process in self.processes]


def made(folder, processes, **asked):
    """What a run ends with."""
    out = folder.with_suffix(".npy")
    said, codes = Job(folder, out, processes, **asked).end()
    assert codes == [0] * processes, said
    assert not any("WARNING" in text or "Traceback" in text for text in said), said
    return np.load(out) if out.exists() else said


@pytest.mark.slow
def test_processes_go_on_with_what_others_have_written(tmp_path):
    """Five tasks of which one is left over, x in parts: with as many processes the same bits, else but for rounding."""
    unbroken = made(tmp_path / "unbroken", 2)
    for name, first, second in [("same", (2, 1), (2, 1)), ("fewer", (2, 1), (1, 1)), ("more", (1, 1), (2, 1)),
                                ("devices", (1, 2), (1, 1))]:  # fmt: skip
        said = made(tmp_path / name, first[0], devices=first[1], stop=60)
        assert all("interrupted 60" in text for text in said)
        ended = made(tmp_path / name, second[0], devices=second[1])
        assert np.array_equal(ended, unbroken) if name == "same" else np.max(np.abs(ended - unbroken)) < 1e-12


@pytest.mark.slow
def test_a_folder_that_is_not_shared_is_an_error_at_once(tmp_path):
    said, codes = Job(tmp_path / "run", tmp_path / "out.npy", 2, elsewhere=True).end()
    assert codes == [1, 1]
    assert all("process 1 does not see what process 0 writes there" in text for text in said)


def wait_for_write(folder, count):
    """Until so many new states are there, and another one is being written."""
    before = set(names(folder)) if folder.exists() else set()
    new = lambda: {name for name in names(folder) if name.endswith(".safetensors")} - before  # noqa: E731
    wait_for(lambda: folder.exists() and len(new()) >= count, 200, "a state")
    wait_for(lambda: any("orbax-checkpoint-tmp" in name for name in names(folder)), 60, "a write")


@pytest.mark.slow
def test_killed_while_it_writes_a_run_goes_on_from_the_last_whole_state(tmp_path):
    """SIGKILL of one of two processes, some time after a write began, as often as BILEVEL_TIMES says."""
    steps, draw, seen = 1500, random.Random(0), []
    unbroken = made(tmp_path / "unbroken", 2, steps=steps)
    folder, out = tmp_path / "run", tmp_path / "run.npy"
    for _ in range(int(os.environ.get("BILEVEL_TIMES", 3))):
        job = Job(folder, out, 2, steps=steps, slow=0.2)
        victim = draw.choice(job.processes)
        wait_for_write(folder, draw.randint(1, 3))
        time.sleep(draw.choice([0, 0.01, 0.05, 0.1, 0.2]))
        assert all(process.poll() is None for process in job.processes), job.end()
        victim.send_signal(signal.SIGKILL)
        _, codes = job.end(60)
        assert 0 not in codes
        seen.append(sum("orbax-checkpoint-tmp" in name for name in names(folder)))
    said, codes = Job(folder, out, 2, steps=steps).end()
    assert codes == [0, 0], said
    assert np.array_equal(np.load(out), unbroken)
    assert not any("orbax-checkpoint-tmp" in name for name in names(folder))
    if not any(seen):
        pytest.skip("no write happened to be cut off: it shows nothing, with a larger BILEVEL_TIMES it would")
