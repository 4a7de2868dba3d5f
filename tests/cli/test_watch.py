"""`bilevel watch`: its screen, and how it ends."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from bilevel._run.watching import Watched
from bilevel.cli import watch_screen
from command import call

NOW = 1_800_000_000.0
TASKS = [f"clinic {letter}" for letter in "ABCDEFG"]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW + 60)


def run(folder, *more, seed=0, held=False):
    """A run of some steps."""
    folder.mkdir(exist_ok=True)
    lines = [{"event": "start", "time": NOW, "title": "MORBiT", "seed": seed, "steps": 10_000, "step": 0}]
    for k in range(30):
        tasks = {name: {"validation": (i + 1) / (k + 1), "weight": i / 21} for i, name in enumerate(TASKS)}
        numbers = {"validation/worst": 7 / (k + 1), "validation/mean": 4 / (k + 1), "steps per second": 50.0}
        rates = {"rate/upper": 0.01, "rate/lower smallest": 0.1, "rate/lower largest": 0.5, "direction norm": 0.25}
        line = {"event": "evaluation", "time": NOW + 2 * k, "step": 100 * k, "seconds": 2.0 * k, "tasks": tasks}
        lines.append(line | numbers | rates)
    lines += [{"event": "checkpoint", "time": NOW + 55, "step": 2800}, *more]
    (folder / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    file = open(folder / "lock", "w")  # noqa: SIM115  (held as long as the test runs)
    if held:
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def text_of(folder, width=80, **options):
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False, **options)
    watched = Watched(folder)
    console.print(watch_screen.frame(watched, watched.poll(), console))
    return console.export_text()


def test_a_running_run(tmp_path):
    file = run(tmp_path, held=True)
    text = text_of(tmp_path)
    file.close()
    first = text.splitlines()[0]
    assert first.startswith("MORBiT seed 0")
    assert first.endswith("running")
    assert "2,900 of 10,000 steps  29 %" in text
    assert "left about 2 min 20 s" in text  # 7,100 steps at 50 a second, 2 seconds after the last line
    assert "checkpoint 5 s ago" in text
    table = [line.split() for line in text.splitlines()]
    assert ["worst", "0.2333", "0.2333", "2,900", "7"] in table
    assert ["clinic", "G", "0.2333", "0.286", "█" * 10] in table
    assert "worst validation loss from step 100 to 2,900, log scale" in text
    assert "rate of x 0.01   of y 0.1 to 0.5   direction 0.25" in text
    worst = [name for name in TASKS if name in text]
    assert worst == TASKS[2:]


def test_what_was_found_of_a_run_that_has_ended(tmp_path):
    found = {"event": "finding", "time": NOW, "step": 10_000, "kind": "still falling", "message": "It was falling."}
    run(tmp_path, found, {"event": "end", "time": NOW, "status": "finished", "message": ""}).close()
    assert "found: It was falling." in text_of(tmp_path)


def test_a_dead_run_says_so_and_from_where_it_can_go_on(tmp_path):
    run(tmp_path).close()
    text = text_of(tmp_path)
    assert text.splitlines()[0].endswith(" dead")
    assert "it was killed, or its machine went down. Kept up to step 2,800" in " ".join(text.split())
    assert "left" not in text


def test_a_run_that_ended_says_how(tmp_path):
    divergence = {"event": "divergence", "time": NOW, "step": 2950, "message": "y of task 'clinic B' became NaN"}
    end = {"event": "end", "time": NOW, "status": "diverged", "message": "MORBiT diverged: at step 2950."}
    run(tmp_path, divergence, end).close()
    text = text_of(tmp_path)
    assert text.splitlines()[0].endswith(" diverged")
    assert "MORBiT diverged: at step 2950." in text
    assert "diverged once at step 2,950: y of task 'clinic B' became NaN" in text


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("seeds", [1, 3])
def test_every_line_fits_the_terminal(tmp_path, width, seeds):
    for seed in range(seeds):
        run(tmp_path / f"seed-{seed}", seed=seed).close()
    text = text_of(tmp_path, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 80:
        assert "…" not in text  # nothing is cut


def test_several_runs_are_a_line_each(tmp_path):
    files = [run(tmp_path / f"seed-{seed}", seed=seed, held=seed == 1) for seed in range(3)]
    files[0].close()
    files[2].close()
    rows = [line.split() for line in text_of(tmp_path).splitlines()]
    files[1].close()
    assert rows[0] == ["3", "runs", "2", "dead,", "1", "running"]
    assert ["seed-1", "running", "29", "%"] in [row[:4] for row in rows]
    assert ["seed-2", "dead", "29", "%", "0.2333", "0.2333"] in [row[:6] for row in rows]


def test_of_more_runs_than_fit_those_that_went_wrong_are_shown(tmp_path):
    end = {"event": "end", "time": NOW, "status": "finished", "message": ""}
    for seed in range(30):
        run(tmp_path / f"seed-{seed}", *([] if seed in (7, 23) else [end]), seed=seed).close()
    text = text_of(tmp_path, force_terminal=True, height=20)
    assert len(text.splitlines()) < 20
    assert "seed-7 " in text
    assert "seed-23 " in text
    assert "and 18 more" in text


def test_names_cannot_move_the_cursor_or_change_the_style(tmp_path):
    name = "a\x1b[2Jb[red]c"
    line = {"event": "evaluation", "time": NOW, "step": 3000, "tasks": {name: {"validation": 9.0, "weight": 1.0}}}
    run(tmp_path, line).close()
    text = text_of(tmp_path)
    assert "a?[2Jb[red]c" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("content", [None, b"", b'{"event":"sta'])
def test_an_empty_or_half_written_folder(tmp_path, content):
    if content is not None:
        (tmp_path / "progress.jsonl").write_bytes(content)
    ran = call("watch", str(tmp_path), "--once")
    assert ran.exit_code == 0
    assert "There is no run in this folder yet." in ran.text


def test_a_terminal_with_ascii_letters_only(tmp_path):
    run(tmp_path).close()
    with open(tmp_path / "screen", "w", encoding="ascii") as file:
        console, watched = Console(width=80, file=file), Watched(tmp_path)
        console.print(watch_screen.frame(watched, watched.poll(), console))
    assert "clinic G" in (tmp_path / "screen").read_text()


def test_no_such_folder_is_code_2(tmp_path):
    ran = call("watch", str(tmp_path / "none"))
    assert ran.exit_code == 2
    assert "none" in ran.errors


def test_without_a_terminal_it_prints_once(tmp_path):
    run(tmp_path).close()
    ran = call("watch", str(tmp_path), columns=80)
    assert ran.exit_code == 0
    assert ran.text == text_of(tmp_path)


COMMAND = [sys.executable, "-W", "error", "-m", "bilevel", "watch"]


def test_it_starts_without_jax(tmp_path):
    code = "import sys; from bilevel import cli; cli.app(['watch', sys.argv[1]], standalone_mode=False)\n"
    command = [sys.executable, "-c", code + "assert 'jax' not in sys.modules", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *arguments):
        self.own, other = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"}
        self.process = subprocess.Popen(arguments, stdin=other, stdout=other, stderr=other, env=environment)
        os.close(other)
        self.text = ""

    def until(self, said, seconds=240.0):
        """Reads until something is said; an empty text means until the program ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (said and said in self.text):
            if not select.select([self.own], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(self.own, 65536)
            except OSError:  # it has ended
                break
            self.text += piece.decode(errors="replace")
        return self.text

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.own)


@pytest.fixture
def terminal(tmp_path):
    shown = Terminal(*COMMAND, str(tmp_path))
    yield shown
    shown.close()


def test_ctrl_c_leaves_with_0_and_the_last_screen_stays(tmp_path, terminal):
    assert "Ctrl-C leaves" in terminal.until("Ctrl-C leaves")
    terminal.process.send_signal(signal.SIGINT)
    text = terminal.until("")
    assert terminal.process.wait(240) == 0
    assert "Traceback" not in text
    assert "There is no run" in text.rpartition("\x1b[?1049l")[2]  # after the screen of its own is gone


def test_it_follows_a_run_to_its_end(tmp_path, terminal):
    terminal.until("There is no run")
    run(tmp_path, held=False).close()
    assert "dead" in terminal.until("2,900 of 10,000")  # which may be resumed
    run(tmp_path, {"event": "end", "time": NOW, "status": "finished", "message": ""}).close()
    assert "finished" in terminal.until("")
    assert terminal.process.wait(240) == 0


# ------------------------------------------------------------------ charts


def test_a_chart_has_the_order_of_its_values():
    values = [3.0, 1.0, 2.0, 5.0, 4.0]
    rows = watch_screen.bars(values, width=10, height=3)
    heights = [sum(watch_screen.EIGHTHS.index(row[k]) for row in rows) for k in range(5)]
    assert sorted(range(5), key=values.__getitem__) == sorted(range(5), key=heights.__getitem__)
    assert (min(heights), max(heights)) == (1, 24)


def test_a_chart_of_many_values_is_no_wider_than_it_may_be():
    assert len(watch_screen.bars(list(range(1000)), width=30)[0]) == 30
    assert watch_screen.bars([], width=30) == [""]
    assert watch_screen.bars([float("inf")] * 3, width=30) == ["   "]
    assert watch_screen.bars([2.0, 2.0], width=30) == ["▁▁"]


def test_values_far_apart_are_on_a_log_scale():
    values = [10.0**-k for k in range(8)]
    assert watch_screen.bars(values, width=8) == [watch_screen.EIGHTHS[:0:-1]]
    assert not watch_screen.is_log([-1.0, 100.0])


# ------------------------------------------------------------------ commands


def test_the_runs_of_a_command_that_are_under_way_are_shown(tmp_path):
    (tmp_path / "command.json").write_text("{}")
    files = []
    for seed in range(2):
        place = tmp_path / "ball" / "runs" / "ball, SOBA" / "tuned" / "run" / "0a1b2c3d" / f"seed-{seed}.unfinished"
        place.mkdir(parents=True)
        files.append(run(place, seed=seed, held=True))
        text = text_of(tmp_path, 100)
        assert f"MORBiT seed {seed}" in text
        assert "running" in text
    assert "2 runs" in text
    assert "2 running" in text_of(tmp_path / "ball", 100)
    for file in files:
        file.close()
    assert "`bilevel resume` goes on from there" in " ".join(text_of(place).split())


def test_a_command_without_a_run_under_way_says_where_its_runs_are(tmp_path):
    (tmp_path / "command.json").write_text("{}")
    (tmp_path / "ball" / "runs").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "ball"):
        text = " ".join(text_of(folder).split())
        assert "none of its runs is under way. Finished runs are below it, in seed-N.csv" in text


def test_selection_losses_are_shown_and_the_best_is_theirs(tmp_path):
    run(tmp_path).close()
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    for k, line in enumerate(line for line in lines if line["event"] == "evaluation"):
        line["selection/worst"] = 1.0 + abs(k - 12)
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = text_of(tmp_path)
    [row] = [line.split() for line in shown.splitlines() if line.startswith("selection worst")]
    assert row == ["selection", "worst", "18", "1", "1,200", "13"]  # now, best, at step, at the start
