"""Steps over tasks whose rows stay on disk, against the same steps with all rows in memory.

    python benchmarks/tasks_on_disk.py FOLDER [tasks] [steps]

Writes 200,000 tasks of 50 kB each (10 GB) to a folder, and removes them again. Every run is a process of its own: in
memory; from disk with the files in the system's cache and out of it, memory-mapped and by a loader of one task at a
time (`Task.load`); and from disk once more, stopped after half of the steps and resumed by another process. Runs from
disk are in a control group with a limit of 2 GB, which pages of files that they read count to (those that were in the
cache before belong to who read them). Where there can be no such group (it takes Linux, and root or a delegated one),
RLIMIT_DATA is set instead and the table says so. It goes into docs/scaling.md. Runs in memory and from the cache are
made in turns, and medians are told.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from page import put

import bilevel as bl

ROWS, FEATURES, INNER, DRAWN, BATCH = 62, 99, 8, 64, 16  # 49.6 kB a task
LIMIT = 2 * 2**30
FILES = tuple(f"{role}_{what}.npy" for role in ("train", "validation") for what in ("inputs", "targets"))


def write(folder: Path, tasks: int) -> None:
    """Linear regressions in which what is predictive lies in a common subspace, a thousand tasks at a time."""
    draws = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    pool = draws.normal(size=(1000 + 64, ROWS, FEATURES)).astype(np.float32)
    basis = (draws.normal(size=(FEATURES, INNER)) / np.sqrt(FEATURES * INNER)).astype(np.float32)
    shapes = [(tasks, ROWS, FEATURES), (tasks, ROWS)] * 2
    arrays = [
        np.lib.format.open_memmap(folder / name, mode="w+", dtype=np.float32, shape=shape)
        for name, shape in zip(FILES, shapes, strict=True)
    ]
    for first in range(0, tasks, 1000):
        here = slice(first, min(first + 1000, tasks))
        truth = basis @ draws.normal(size=(here.stop - here.start, INNER, 1)).astype(np.float32)
        for inputs, targets in (arrays[:2], arrays[2:]):
            shift = draws.integers(64)
            own = pool[shift : shift + here.stop - here.start] * np.float32(draws.uniform(0.5, 1.5))
            inputs[here] = own
            targets[here] = (own @ truth)[..., 0] + draws.normal(size=own.shape[:2]).astype(np.float32)
    for array in arrays:
        array.flush()


def warm(folder: Path, wanted: bool) -> None:
    """Puts the files into the system's cache, or out of it."""
    for name in FILES:
        with open(folder / name, "rb") as file:
            os.fsync(file.fileno())
            if not wanted:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while wanted and file.read(2**24):
                pass


class Files:
    """One task after the other, as a loader reads them."""

    def __init__(self, folder: Path):
        mapped = [np.load(folder / name, mmap_mode="r") for name in FILES]
        for array in mapped:  # rows that are only near a task are not read with it
            array._mmap.madvise(mmap.MADV_RANDOM)
        # As plain arrays: a memmap makes a memmap of every part of it, which takes longer than to read that.
        self.arrays = [np.asarray(array) for array in mapped]

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, i: int) -> dict:
        own = [array[i] for array in self.arrays]
        return {"train": tuple(own[:2]), "validation": tuple(own[2:])}


def tasks_of(folder: Path, where: str) -> object:
    if where == "loader":
        return bl.Task.load(Files(folder))
    mapped = (np.load(folder / name, mmap_mode="r") for name in FILES)
    arrays = [array if where == "disk" else jnp.asarray(array) for array in mapped]
    return bl.Task.stack(train=tuple(arrays[:2]), validation=tuple(arrays[2:]))


def problem(tasks: object) -> bl.Problem:
    def upper(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return jnp.mean((batch[0] @ x @ y - batch[1]) ** 2) / 2

    def lower(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return upper(x, y, batch) + 0.05 * jnp.sum(y**2)

    return bl.Problem(upper, lower, tasks, lower_batch=BATCH, upper_batch=BATCH)


def one(folder: Path, where: str, steps: int, stop: int, kept: str) -> None:
    """One run: prints steps a second, processor ms a step, seconds before and after the steps, worst loss, x."""
    began = time.perf_counter()
    tasks = tasks_of(folder, where)
    seen: list[tuple[float, float, int]] = []

    def callback(row: dict) -> None:
        seen.append((time.perf_counter(), time.process_time(), row["step"]))
        if row["step"] >= stop < steps:
            raise InterruptedError  # so that the run is gone on with later

    x = jnp.asarray(np.random.default_rng(1).normal(size=(FEATURES, INNER)) / 10, jnp.float32)
    options: dict = {"checkpoint": kept, "resume": True} if kept else {}
    solver = bl.MORBiT(0.01, 0.05, bl.hypergradients.Tracked(0.05), bl.weightings.SimplexAscent(1e-7))
    solver = solver.replace(sampling=bl.sampling.Mixture(DRAWN))
    options |= {"callback": callback, "every": steps // 10}  # an evaluation reads 1,024 tasks
    result = bl.solve(problem(tasks), solver, x, jnp.zeros(INNER), steps=steps, progress=False, **options)
    (first, used_first, step), (last, used_last, last_step) = seen[0], seen[-1]
    rate, used = (last_step - step) / (last - first), 1000 * (used_last - used_first) / (last_step - step)
    print(rate, used, first - began, time.perf_counter() - last, result.worst, np.asarray(result.x).tobytes().hex())


@contextlib.contextmanager
def limited_group() -> Iterator[Path | None]:
    """A control group with a limit of memory, below that of this process; None = there can be none."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    root, limit = Path("/sys/fs/cgroup"), "memory.max"
    if "memory" in own:
        place, limit = root / "memory" / own["memory"].lstrip("/"), "memory.limit_in_bytes"
    else:
        place = root / own.get("", "").lstrip("/")
    group = place / f"tasks-on-disk-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        (group / limit).write_text(str(LIMIT))
        yield group
    except OSError:
        yield None
    finally:
        group.rmdir()


def peak_of(group: Path) -> float:
    """The most memory that was charged to a group, in MB."""
    names = ("memory.max_usage_in_bytes", "memory.peak")
    return int(next(group / name for name in names if (group / name).exists()).read_text()) / 1e6


def run(folder: Path, where: str, steps: int, stop: int | None = None, kept: str = "") -> tuple[list[str], float]:
    """The same in a process of its own, and the memory it took: what was charged to its group, or what was resident."""
    command = [sys.executable, __file__, "one", str(folder), where, str(steps), str(stop or steps), kept]
    with limited_group() if where != "memory" else contextlib.nullcontext() as group:

        def limited() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))
            elif where != "memory":
                resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited) as process:
            assert process.stdout is not None
            said = process.stdout.read().split()
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        return said, usage.ru_maxrss / 1e3 if group is None else peak_of(group)


TURNS = 3  # in memory and from the cache, one after the other: medians are told
RUNS = (
    *(("memory", "memory", True), ("mapped, warm", "disk", True)) * TURNS,
    ("mapped, cold", "disk", False),
    ("loader, warm", "loader", True),
    ("loader, cold", "loader", False),
)
COLUMNS = (
    "",
    "steps a second",
    "ratio",
    "processor ms a step",
    "ratio",
    "s before",
    "s after",
    "peak, MB",
    "worst loss",
)


def main(folder: Path, tasks: int, steps: int) -> None:
    began = time.perf_counter()
    write(folder, tasks)
    size = sum((folder / name).stat().st_size for name in FILES)
    print(f"{tasks} tasks, {size / 1e9:.1f} GB, written in {time.perf_counter() - began:.0f} s; {DRAWN} in a step")
    with limited_group() as group:
        by = "a control group" if group is not None else "RLIMIT_DATA, without pages of files"
    found: dict[str, list[list[float]]] = {}
    ends: dict[str, str] = {}  # x, by name
    try:
        for name, where, is_warm in RUNS:
            warm(folder, is_warm)
            (*numbers, ends[name]), peak = run(folder, where, steps)
            found.setdefault(name, []).append([*map(float, numbers), peak])
            print(name, *found[name][-1], flush=True)
        lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        base, used_base = np.median(found["memory"], axis=0)[:2]
        for name, rows in found.items():
            rate, used, before, after, worst, peak = np.median(rows, axis=0)
            speed = f"{rate:.0f} | {rate / base:.2f} | {used:.2f} | {used_base / used:.2f}"
            lines.append(f"| {name} | {speed} | {before:.0f} | {after:.0f} | {peak:,.0f} | {worst:.4f} |")
        turns = zip(found["mapped, warm"], found["memory"], strict=True)
        ratios = ", ".join(f"{disk[0] / memory[0]:.2f}" for disk, memory in turns)
        said = []
        for name, where in (("mapped", "disk"), ("by the loader", "loader")):
            kept = str(folder / f"run-{where}")
            warm(folder, True)
            run(folder, where, steps, steps // 2, kept)
            same = run(folder, where, steps, None, kept)[0][-1] == ends[f"{name.split()[-1]}, warm"]
            said.append(f"{name} {'the same bits' if same else 'OTHER BITS'}")
        end = f"Mapped, warm, turn by turn: {ratios}. The limit is that of {by}. "
        end += f"Stopped after half of the steps and resumed from disk: {', '.join(said)}."
        put("tasks on disk", "\n".join([*lines, "", end]))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        main(Path(sys.argv[1]), *map(int, [*sys.argv[2:], *("200000", "2000")[len(sys.argv) - 2 :]]))
