"""Steps over tasks whose rows stay on disk, against the same steps with all rows in memory.

    python benchmarks/tasks_on_disk.py FOLDER [tasks] [steps]

Writes 200,000 tasks of 50 kB each (10 GB) to a folder, and removes them again. Every run is a process of its own: from
disk with the files out of the system's cache, then with them in it, both with a limit of 2 GB on what the process may
allocate (RLIMIT_DATA, which mapped files are not part of) and the peak of all that was resident; in memory; and from
disk once more, stopped after half of the steps and resumed by another process. The table goes into docs/scaling.md.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
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


def problem(arrays: list[np.ndarray]) -> bl.Problem:
    def upper(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return jnp.mean((batch[0] @ x @ y - batch[1]) ** 2) / 2

    def lower(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return upper(x, y, batch) + 0.05 * jnp.sum(y**2)

    tasks = bl.Task.stack(train=tuple(arrays[:2]), validation=tuple(arrays[2:]))
    return bl.Problem(upper, lower, tasks, lower_batch=BATCH, upper_batch=BATCH)


def one(folder: Path, where: str, steps: int, stop: int, kept: str) -> None:
    """One run: prints steps a second, processor ms a step, seconds before and after the steps, MB, worst loss, x."""
    began = time.perf_counter()
    mapped = (np.load(folder / name, mmap_mode="r") for name in FILES)
    arrays = [array if where == "disk" else jnp.asarray(array) for array in mapped]
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
    result = bl.solve(problem(arrays), solver, x, jnp.zeros(INNER), steps=steps, progress=False, **options)
    (first, used_first, step), (last, used_last, last_step) = seen[0], seen[-1]
    rate, used = (last_step - step) / (last - first), 1000 * (used_last - used_first) / (last_step - step)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) / 1024
    print(
        rate, used, first - began, time.perf_counter() - last, peak, result.worst, np.asarray(result.x).tobytes().hex()
    )


def run(folder: Path, where: str, steps: int, stop: int | None = None, kept: str = "") -> list[str]:
    """The same in a process of its own."""

    def limited() -> None:
        if where == "disk":
            resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

    command = [sys.executable, __file__, "one", str(folder), where, str(steps), str(stop or steps), kept]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=limited).stdout.split()


def main(folder: Path, tasks: int, steps: int) -> None:
    began = time.perf_counter()
    write(folder, tasks)
    size = sum((folder / name).stat().st_size for name in FILES)
    print(f"{tasks} tasks, {size / 1e9:.1f} GB, written in {time.perf_counter() - began:.0f} s; {DRAWN} in a step")
    names = (
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
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    found: dict[str, list[str]] = {}
    try:
        for name, where, is_warm in (
            ("memory", "memory", True),
            ("disk, warm", "disk", True),
            ("disk, cold", "disk", False),
        ):
            warm(folder, is_warm)
            found[name] = run(folder, where, steps)
            rate, used, before, after, peak, worst = map(float, found[name][:-1])
            base, used_base = map(float, found["memory"][:2])
            speed = f"{rate:.0f} | {rate / base:.2f} | {used:.2f} | {used_base / used:.2f}"
            lines.append(f"| {name} | {speed} | {before:.0f} | {after:.0f} | {peak:,.0f} | {worst:.4f} |")
            print(lines[-1], flush=True)
        kept = str(folder / "run")
        run(folder, "disk", steps, steps // 2, kept)
        same = run(folder, "disk", steps, None, kept)[-1] == found["disk, warm"][-1]
        said = "the same bits" if same else "OTHER BITS"
        put("tasks on disk", "\n".join([*lines, "", f"Stopped after half of the steps and resumed from disk: {said}."]))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1] == "one":
        one(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        main(Path(sys.argv[1]), *map(int, [*sys.argv[2:], *("200000", "2000")[len(sys.argv) - 2 :]]))
