"""What ends a run from outside: signals, deadlines, full disks, another process, kill -9."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

import bilevel as bl
from bilevel._run import checkpoint_writer, compiling, lock, run_folder
from bilevel._run.stopping import Deadline, noticed
from kept_runs import same, solve

TESTS = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}


def process(code, *arguments, **options):
    """A process of its own, with the runs of `kept_runs`, in the precision that the tests have."""
    begin = "import jax; jax.config.update('jax_enable_x64', True); import os, signal, sys; from kept_runs import *\n"
    command = [sys.executable, "-c", begin + code, *map(str, arguments)]
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, **options)


def ended(started, timeout=240):
    try:
        return started.wait(timeout)
    finally:
        started.kill()  # only where it has not ended


def states(folder):
    return sorted(path.name for path in folder.glob("state-*"))


# ------------------------------------------------------------------ signals


def press(*signals, step=20):
    """A callback during which these signals come."""

    def callback(row):
        if row["step"] == step:
            for number in signals:
                os.kill(os.getpid(), number)

    return callback


def test_ctrl_c_returns_what_was_reached_and_leaves_handlers_as_they_were():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = solve(callback=press(signal.SIGINT))
    assert (result.status, result.steps) == ("interrupted", 20)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        solve(callback=press(signal.SIGINT, signal.SIGINT), checkpoint=tmp_path)
    assert same(solve(checkpoint=tmp_path, resume=True), solve())


def test_sigterm_writes_and_exits_with_143(tmp_path, caplog):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        solve(callback=press(signal.SIGTERM), checkpoint=tmp_path)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before
    said = f"SIGTERM: the state of step 20 is in {str(tmp_path)!r}; with resume=True the run goes on from there."
    assert caplog.messages[-1:] == [said]
    assert states(tmp_path) == ["state-000000000020.safetensors"]
    assert same(solve(checkpoint=tmp_path, resume=True), solve())


def test_sigterm_in_runs_of_several_seeds_is_told_once(tmp_path, caplog):
    with pytest.raises(SystemExit):
        solve(seeds=2, callback=press(signal.SIGTERM), checkpoint=tmp_path)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"SIGTERM: the states of 2 runs are in {str(tmp_path)!r}; with resume=True they go on from there."]


def test_sigterm_says_nothing_of_a_state_that_could_not_be_written(tmp_path, caplog, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, "no space left")

    def callback(row):
        monkeypatch.setattr(checkpoint_writer, "write_whole", full)
        press(signal.SIGTERM)(row)

    with pytest.warns(RuntimeWarning, match="could not be written"), pytest.raises(SystemExit):
        solve(callback=callback, checkpoint=tmp_path)
    assert [m for m in caplog.messages if "SIGTERM" in m] == ["SIGTERM: no state of the run could be written."]


def test_without_a_checkpoint_sigterm_keeps_its_meaning():
    started = process("solve(callback=lambda row: os.kill(os.getpid(), signal.SIGTERM))")
    assert ended(started) == -signal.SIGTERM


def test_handlers_of_the_users_own_stay(tmp_path):
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        result = solve(callback=press(signal.SIGINT), checkpoint=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert result.status == "finished"


def test_handlers_that_raise_end_a_run_as_before(tmp_path):
    """Between a call and what is decided after it: the state is that before the call."""

    def interrupt(row):
        if row["step"] == 40:
            raise KeyboardInterrupt

    result = solve(callback=interrupt, checkpoint=tmp_path)
    assert (result.status, result.steps) == ("interrupted", 40)
    assert same(solve(checkpoint=tmp_path, resume=True), solve())


def test_outside_the_main_thread_nothing_is_installed():
    before, found = signal.getsignal(signal.SIGINT), []

    def other():
        with noticed(saves=True):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [before]


def test_a_run_in_another_thread_is_kept_too(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(solve(checkpoint=tmp_path)))
    thread.start()
    thread.join()
    assert same(results[0], solve())


# ------------------------------------------------------------------ deadlines


def test_a_deadline_stops_a_run_that_then_goes_on(tmp_path, monkeypatch):
    near = []
    monkeypatch.setattr(Deadline, "is_within", lambda self, seconds: len(near) > 2 or bool(near.append(seconds)))
    result = solve(checkpoint=tmp_path, seconds=500)
    assert result.status == "stopped early"
    assert result.message.startswith("Stopped because its time limit was reached (seconds=500). Its state is saved: ")
    assert 0 < result.steps < 60
    assert not (tmp_path / "result.safetensors").exists()
    monkeypatch.undo()
    assert same(solve(checkpoint=tmp_path, resume=True), solve())


def test_a_deadline_leaves_time_for_a_call_and_for_writing(tmp_path, monkeypatch):
    """Of which compiling is no part: it happens once. Here every evaluation is said to have compiled for long."""
    near, long, event = [], 10_000.0, sorted(compiling.EVENTS)[0]
    monkeypatch.setattr(Deadline, "is_within", lambda self, seconds: bool(near.append(seconds)))
    solve(
        checkpoint=tmp_path,
        seconds=500,
        callback=lambda row: jax.monitoring.record_event_duration_secs(event, long * (row["step"] > 0)),
    )
    calls = [seconds + long * (seconds < 0) for seconds in near]  # without what was taken off for compiling
    assert near[0] == 0
    assert sum(seconds < 0 for seconds in near) == 2  # after steps 20 and 40; after the last nobody asks
    assert all(checkpoint_writer.DISK_LATENCY < seconds < long / 2 for seconds in calls[1:])


def test_seconds_are_for_all_of_a_call():
    results = solve(steps=10**6, every=10**5, seeds=3, seconds=0.5)
    assert {result.status for result in results} == {"stopped early"}
    assert results[0].message == "Stopped because its time limit was reached (seconds=0.5)."


# ------------------------------------------------------------------ disks


def failing(monkeypatch, number, until=10**9):
    """States cannot be written, up to so many times."""
    write, tried = checkpoint_writer.write_whole, []

    def trying(path, content):
        tried.append(path.name)
        if len(tried) <= until:
            raise OSError(number, os.strerror(number))
        write(path, content)

    monkeypatch.setattr(checkpoint_writer, "write_whole", trying)
    return tried


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_run_whose_states_cannot_be_written_ends_with_its_result(number, tmp_path, monkeypatch):
    tried = failing(monkeypatch, number)
    with pytest.warns(RuntimeWarning, match="could not be written") as caught:
        result = solve(checkpoint=bl.Checkpoint(tmp_path, steps=10))
    assert same(result, solve())
    assert len(tried) > 2  # it is tried again
    assert len(caught) == 2  # once on the way, once at the end
    assert os.strerror(number) in str(caught[0].message)
    assert "tried again" in str(caught[0].message)
    assert "The result still has it" in str(caught[1].message)


def test_a_disk_that_has_room_again_is_written_to(tmp_path, monkeypatch):
    failing(monkeypatch, errno.ENOSPC, until=2)
    with pytest.warns(RuntimeWarning, match="The run continues") as caught:
        solve(checkpoint=bl.Checkpoint(tmp_path, steps=5))
    assert len(caught) == 1
    assert same(solve(checkpoint=tmp_path, resume=True), solve())


def test_a_slow_disk_does_not_stop_the_run(tmp_path, monkeypatch):
    """Steps are taken while the first state is still being written."""
    reached, write = threading.Event(), checkpoint_writer.write_whole

    def slow(path, content):
        assert reached.wait(60)
        write(path, content)

    monkeypatch.setattr(checkpoint_writer, "write_whole", slow)
    result = solve(
        checkpoint=bl.Checkpoint(tmp_path, steps=5), callback=lambda row: row["step"] == 60 and reached.set()
    )
    assert same(result, solve())
    assert states(tmp_path)[-1] == "state-000000000060.safetensors"


def test_what_cannot_be_a_folder_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(bl.Solver, "init", lambda *a, **o: pytest.fail("it was started"))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"solve\(checkpoint='.*file'\): it is a file, and it needs a folder"):
        solve(checkpoint=tmp_path / "file")
    with pytest.raises(NotADirectoryError, match=r"solve\(checkpoint='.*file/run'\) cannot be written"):
        solve(checkpoint=tmp_path / "file" / "run")
    with pytest.raises(OSError, match=r"solve\(checkpoint='/proc/run'\) cannot be written"):
        solve(checkpoint="/proc/run")


def test_a_disk_that_is_full_at_the_start_is_refused(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder, "write_whole", full)
    with pytest.raises(OSError, match=r"solve\(checkpoint='.*'\) cannot be written, No space left") as caught:
        solve(checkpoint=tmp_path)
    assert caught.value.errno == errno.ENOSPC


# ------------------------------------------------------------------ two processes


HOLDS = """
from bilevel._run.lock import Lock
held = Lock(Path(sys.argv[1]))
print("held", flush=True)
signal.pause()
"""


def test_the_second_process_is_refused_and_a_dead_ones_lock_is_free(tmp_path):
    started = process("from pathlib import Path" + HOLDS, tmp_path / "lock", stdout=subprocess.PIPE)
    try:
        assert started.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=rf"process {started.pid} on \S+ works on it, and a run has one"):
            solve(checkpoint=tmp_path, resume=True)
    finally:
        started.kill()
        started.communicate(timeout=240)
    assert solve(checkpoint=tmp_path, resume=True).status == "finished"


def test_the_same_folder_twice_in_one_process_is_refused(tmp_path):
    def again(row):
        with pytest.raises(BlockingIOError, match="this process works on it already"):
            solve(checkpoint=tmp_path, resume=True)

    assert solve(checkpoint=tmp_path, callback=again).status == "finished"
    assert solve(checkpoint=tmp_path, resume=True).status == "finished"  # it is free again


def test_a_lock_is_no_link_to_somewhere_else(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="cannot be written"):
        solve(checkpoint=tmp_path)
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_where_a_file_system_has_no_locks_runs_are_kept_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    assert solve(checkpoint=tmp_path).status == "finished"


# ------------------------------------------------------------------ kill -9

KILLED = """
name, folder, moment = sys.argv[1:]
from bilevel._run import driver
driver.CALL_SECONDS = 0.0  # a call for every step, and a state for every call
begun = []
def note(row):
    if not begun and any(name.startswith("state-") for name in os.listdir(folder)):
        begun.append(row)
        threading.Timer(float(moment), os.kill, (os.getpid(), signal.SIGKILL)).start()
solve(name, 20_000, every=10, checkpoint=bl.Checkpoint(folder, steps=1), callback=note)
"""


def kill_and_resume(name, folder, moment):
    """Killed so many seconds after its first state was written; its states are read, and the run goes on to an end."""
    started = process("import threading" + KILLED, name, folder, moment)
    assert ended(started) == -signal.SIGKILL
    written = states(folder)
    assert written
    stop = int(written[-1][6:18]) // 10 * 10 + 20  # not so far as to take long
    options = {"steps": 20_000, "every": 10, "callback": lambda row: row["step"] >= stop}
    assert same(solve(name, checkpoint=folder, resume=True, **options), solve(name, **options))


@pytest.mark.filterwarnings("error")  # no state is unreadable
@pytest.mark.parametrize("name", ["MORBiT", "SABA"])
def test_a_run_that_was_killed_at_any_moment_goes_on_as_if_it_never_was(name, tmp_path):
    kill_and_resume(name, tmp_path, random.Random().uniform(0, 0.5))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["Tandem", "SPABA", "STABLE", "GDA", "MORBiT with Adam"])
@pytest.mark.parametrize("moment", [0.0, 0.05, 0.3, 1.0])
def test_solvers_that_were_killed_go_on_as_if_they_never_were(name, moment, tmp_path):
    kill_and_resume(name, tmp_path, moment)


def test_ctrl_c_and_sigterm_in_a_process_of_its_own(tmp_path):
    """With a run in every thread; the codes are those of shells."""
    code = """
from bilevel._run import driver
driver.CALL_SECONDS = 0.0
def say(row):
    sys.stdout.write(f"{row['step']}\\n")  # in one piece: two threads print
    sys.stdout.flush()
results = solve(steps=10**6, every=10, seeds=2, checkpoint=sys.argv[1], callback=say)
sys.exit(130 if {r.status for r in results} == {"interrupted"} else 1)
"""
    for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        folder = tmp_path / str(expected)
        started = process(code, folder, stdout=subprocess.PIPE)
        try:
            assert started.stdout.readline() == "10\n"
            started.send_signal(number)
            started.communicate(timeout=240)
        finally:
            started.kill()
        assert started.returncode == expected
        for seed in ("seed-0", "seed-1"):
            assert json.loads((folder / seed / "run.json").read_text())["steps"] == 10**6
            assert states(folder / seed)
