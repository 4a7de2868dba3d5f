"""What it costs to keep a run in a folder as it goes, and how soon a signal is noticed.

The same run is made with `checkpoint=` and without, in pairs whose order alternates, so that whatever else the machine
does slows both; per size of the state it prints the median over pairs of with / without, for CPU time and time passed,
with a bootstrap interval of 95 %. Then processes that run are sent SIGTERM, and the time until they have exited is
taken: it has the end of the compiled call and the last write in it.

    python benchmarks/checkpointing.py --pairs 9 --seconds 20 --every 10

With --megabytes two processes on this machine keep a state of that size, which is nearly all of y, in one file and by
Orbax, in turn: how long a run stands still for a write, how long the write takes in all, how long it takes to read, and
how much memory each process needs beyond what it had, at most.

    python benchmarks/checkpointing.py --megabytes 200
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from versions import interval

import bilevel as bl

SIZES = {"100 kB": 6_000, "50 MB": 3_100_000}  # entries of x, of which a state has four copies in float32


def upper(x, y, batch):
    return jnp.mean((batch @ y - 1) ** 2) + jnp.mean((x - y[0]) ** 2)


def lower(x, y, batch):
    return jnp.mean((batch @ y - jnp.mean(x)) ** 2) + jnp.sum(y**2)


def problem() -> bl.Problem:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4, 2, 64, 8)).astype(np.float32)
    tasks = [bl.Task(name=f"task {i}", train=train, validation=valid) for i, (train, valid) in enumerate(rows)]
    return bl.Problem(upper, lower, tasks, lower_batch=16, upper_batch=16)


class Used(NamedTuple):
    """Seconds."""

    cpu: float
    passed: float


def run(given: bl.Problem, entries: int, steps: int, checkpoint: bl.Checkpoint | None) -> Used:
    """One run."""
    began = Used(time.process_time(), time.perf_counter())
    solver = bl.MORBiT(1e-3, 0.1, weighting=bl.weightings.SimplexAscent(1e-3))
    x, y = jnp.zeros(entries, jnp.float32), jnp.zeros(8, jnp.float32)
    bl.solve(given, solver, x, y, steps=steps, progress=False, checkpoint=checkpoint)
    return Used(time.process_time() - began.cpu, time.perf_counter() - began.passed)


def pairs(given: bl.Problem, entries: int, steps: int, every: float, count: int) -> Iterator[tuple[Used, Used, int]]:
    """(without, with) a checkpoint, and the bytes of a state."""
    for k in range(count):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = bl.Checkpoint(folder, seconds=every)
            used = {kept: run(given, entries, steps, checkpoint if kept else None) for kept in (k % 2 == 0, k % 2 == 1)}
            size = max(path.stat().st_size for path in Path(folder).glob("state-*"))
        yield used[False], used[True], size


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import checkpointing as c
c.run(c.problem(), int(sys.argv[3]), 10**9, c.bl.Checkpoint(sys.argv[2]))
"""


def notice(entries: int) -> tuple[float, int]:
    """Seconds from SIGTERM to the end of a process that runs, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        here = str(Path(__file__).parent)
        child = subprocess.Popen([sys.executable, "-c", CHILD, here, folder, str(entries)], env=dict(os.environ))
        try:
            started = time.monotonic()
            while sum("evaluation" in line for line in lines(folder)) < 1 and time.monotonic() - started < 120:
                time.sleep(0.2)
            time.sleep(4.0)  # past compiling, into calls of full length
            sent = time.monotonic()
            child.send_signal(signal.SIGTERM)
            code = child.wait(60)
            return time.monotonic() - sent, code
        finally:
            if child.poll() is None:
                child.kill()


def lines(folder: str) -> list[str]:
    """What a run has told so far."""
    file = Path(folder, "progress.jsonl")
    return file.read_text().splitlines() if file.exists() else []


# ------------------------------------------------------------------ two processes

PART = """
import sys
sys.path.insert(0, sys.argv[1])
import checkpointing as c
c.part(*sys.argv[2:])
"""
TASKS, COPIES = 64, 4  # of y a state has four: the last, the best, a random one and the average


def part(folder: str, address: str, process: str, megabytes: str, times: str) -> None:
    """What one of two processes measures, printed as JSON lines."""
    bl.distributed.start(address, processes=2, process=int(process))
    from bilevel._run import recording
    from bilevel._run.checkpoint_writer import open_checkpoints
    from bilevel._run.devices import Layout
    from bilevel._run.run import Run

    entries = int(float(megabytes) * 1e6 / (4 * COPIES * TASKS))
    rows = np.random.default_rng(0).normal(size=(2, TASKS, 8, 1)).astype(np.float32)
    stack = bl.Task.stack(train=rows[0], validation=rows[1])
    far = lambda x, y, batch: jnp.mean((y - x - jnp.mean(batch)) ** 2)  # noqa: E731
    given = bl.Problem(far, far, stack)
    x, y = jnp.zeros((), jnp.float32), jnp.zeros(entries, jnp.float32)
    layout = Layout.of(None, given, x)
    for k in range(int(times) + 1):
        for files in (bl.checkpoints.OneFile(), bl.checkpoints.Orbax()):
            place = Path(folder, f"{type(files).__name__}-{k}")
            kept = {"checkpoint": bl.Checkpoint(place, seconds=None, steps=1, files=files), "layout": layout}
            made = Run(given, bl.MORBiT(0.1, 0.1), x, y, 0, 10, **kept)
            with open_checkpoints([made]) as [writer]:
                reached = recording.begin(made)._replace(step=1)
                found = _measured(functools.partial(writer.offer, reached), place / "state-000000000001.safetensors")
            with open_checkpoints([Run(given, bl.MORBiT(0.1, 0.1), x, y, 0, 10, resume=True, **kept)]) as [writer]:
                found |= {f"read {name}": value for name, value in _measured(writer.restore).items()}
            if k:  # the first compiles
                print(json.dumps({"files": type(files).__name__, "process": int(process)} | found), flush=True)


def _measured(action, file: Path | None = None) -> dict[str, float]:
    """Seconds until an action is back and until a file is there, and the megabytes that were needed at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before, began = _megabytes("VmRSS"), time.perf_counter()
    action()
    back = time.perf_counter() - began
    while file is not None and not file.exists():
        time.sleep(0.005)
    return {"back": back, "done": time.perf_counter() - began, "peak": _megabytes("VmHWM") - before}


def _megabytes(name: str) -> float:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[name].split()[0]) * 1024 / 1e6


def in_parts(megabytes: float, times: int) -> None:
    """One file and Orbax in turn, on two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, "-c", PART, str(Path(__file__).parent), folder, address]
        given = [str(megabytes), str(times)]
        both = [subprocess.Popen([*own, str(i), *given], stdout=subprocess.PIPE, text=True) for i in range(2)]
        said = [json.loads(line) for one in both for line in one.communicate()[0].splitlines() if line[0] == "{"]
    for files in ("OneFile", "Orbax"):
        for process in (0, 1):
            mine = [one for one in said if (one["files"], one["process"]) == (files, process)]
            middle = {name: float(np.median([one[name] for one in mine])) for name in mine[0] if name != "files"}
            print(f"{files}, process {process}, a state of {megabytes:g} MB, medians of {len(mine)}:")
            print(
                f"  stands still {middle['back']:.2f} s, written after {middle['done']:.2f} s, {middle['peak']:+.0f} MB"
            )
            print(f"  read in {middle['read done']:.2f} s, {middle['read peak']:+.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="What checkpoints cost.")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long one run takes, about")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two states")
    parser.add_argument("--signals", type=int, default=5)
    parser.add_argument("--megabytes", type=float, help="of a state on two processes; nothing else is measured then")
    parser.add_argument("--times", type=int, default=5, help="how often with --megabytes")
    options = parser.parse_args()
    if options.megabytes:
        return in_parts(options.megabytes, options.times)
    given = problem()
    for name, entries in SIZES.items():
        run(given, entries, 200, None)  # compiles
        pace = 2000 / run(given, entries, 2000, None).passed
        steps = int(options.seconds * pace)
        found = list(pairs(given, entries, steps, options.every, options.pairs))
        for kind in Used._fields:
            ratio = interval(np.array([getattr(kept, kind) / getattr(plain, kind) for plain, kept, _ in found]))
            plain = np.median([getattr(plain, kind) for plain, _, _ in found])
            print(
                f"{name}: state {found[0][2] / 1e6:.3g} MB, {steps} steps, {kind} {plain:.1f} s without; with / "
                f"without {ratio.median:.4f} [{ratio.low:.4f}, {ratio.high:.4f}], {options.pairs} pairs",
                flush=True,
            )
        times = [notice(entries) for _ in range(options.signals)]
        said = ", ".join(f"{seconds:.2f} s (code {code})" for seconds, code in times)
        print(f"{name}: from SIGTERM to the end of the process: {said}", flush=True)


if __name__ == "__main__":
    main()
