"""Two devices, and two processes, against one: how far their runs are apart, and how much faster two devices are.

    python benchmarks/devices.py agree          2,000 steps in float64, for MORBiT, Tandem, SABA and STABLE
    python benchmarks/devices.py speed          a step of 64 FashionMNIST-shaped tasks, one thread a device
    python benchmarks/devices.py sampled        a step of 64 of 10,000 tasks of both shapes, one thread a device

`agree` prints the largest difference in x, y, weights and losses, on problems of the shapes of the paper's two
experiments with 5 tasks, which two devices do not divide. The networks are narrower than the paper's, and STABLE's
still more: it keeps a matrix of d_x d_y numbers for every task. Rates are given, but Tandem's: measured ones rest on
differences of two gradients, in which another order of sums shows in the 9th digit, so that two runs with them part.
Those of SABA and STABLE are smaller where a run would swing and make rounding errors larger: SABA at the rates of the
others is 6e-9 apart on the first shape after 2,000 steps, and STABLE blows up on any number of devices.

`speed` runs the three settings in turn, several times: 64 tasks on one device, on two, and 32 tasks on one, which is
what a device of two has to do. What two devices need more than that is the sums over devices and waiting for them.

`sampled` does the same for MORBiT with `sampling=Mixture(64)`, moves of the weights included. Tasks of FashionMNIST's
shape have 8 + 128 rows here, so that 10,000 of them are 1 GB. Beside it, a step of a problem that has 64 tasks only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SOLVERS = ("MORBiT", "Tandem", "SABA", "STABLE")
RATES = {"fashion": (0.05, 0.01, 0.3), "letter": (0.01, 0.05, 0.1)}  # of x, y and the weights
CALMER = {  # where a run with these swings, so that it makes rounding errors larger; and the options of a solver
    ("fashion", "SABA"): ((0.01, 0.01, 0.03), {}),
    ("fashion", "STABLE"): ((0.003, 0.01, 0.03), {"floor": 0.3}),
    ("letter", "STABLE"): ((0.01, 0.01, 0.1), {"floor": 0.1}),
}
STEPS, TASKS = 2000, 5
TIMED_STEPS, ROUNDS, TURNS = 20, 3, 3
SAMPLED_STEPS = {"fashion": 38, "letter": 1900}  # the weights move every 19


def ready(shape: str, tasks: int, width: int) -> Any:
    """A problem of random rows, in the shapes of an experiment of the paper."""
    import bilevel as bl

    rng = np.random.default_rng(0)
    if shape == "letter":
        points = rng.normal(size=(tasks, 240, 16))
        signs = np.where(points.sum(2) + points[:, :, 0] * np.arange(tasks)[:, None] > 0, 1.0, -1.0)
        own = [bl.Task((p[:160], s[:160]), (p[160:], s[160:])) for p, s in zip(points, signs, strict=True)]
        return bl.problems.hyperparameters(own, width, 8, 8, bandwidth=0.3)
    labels = rng.integers(2, size=(tasks, 416))
    shift = 20 * labels[..., None] * np.sin(np.arange(tasks)[:, None] + np.arange(784))[:, None]
    images = np.clip(rng.integers(256, size=(tasks, 416, 784)) + shift, 0, 255).astype(np.uint8)
    own = [bl.Task((i[:160], t[:160]), (i[160:], t[160:])) for i, t in zip(images, labels, strict=True)]
    return bl.problems.representation(own, (784, width), lower_batch=8, upper_batch=128)


def width_of(shape: str, solver: str) -> int:
    return {("letter", True): 8, ("letter", False): 128, ("fashion", True): 4, ("fashion", False): 16}[
        shape, solver == "STABLE"
    ]


def method(shape: str, solver: str) -> Any:
    import bilevel as bl

    if solver == "Tandem":
        return bl.Tandem()
    (upper, lower, weights), options = CALMER.get((shape, solver), (RATES[shape], {}))
    return getattr(bl, solver)(upper, lower, weighting=bl.weightings.SimplexAscent(weights), **options)


# ------------------------------------------------------------------ in a process of its own


def worker(shape: str, solver: str, out: str, *devices: str) -> None:
    """One run, whose numbers go into a file; devices are a number, or address and rank of one of two processes."""
    import bilevel as bl

    if len(devices) == 2:
        bl.distributed.start(devices[0], 2, int(devices[1]), timeout=300, heartbeat=100)
    import jax

    jax.config.update("jax_enable_x64", True)
    made = ready(shape, TASKS, width_of(shape, solver))
    x = jax.tree.map(lambda a: a.astype(float), made.x)
    y = jax.tree.map(lambda a: a.astype(float), made.problem.starting_y(None, jax.random.key(0)))
    y = made.problem.by_name(y)
    count = int(devices[0]) if len(devices) == 1 else None
    given = {"x": x, "y": dict(y), "steps": STEPS, "progress": False}
    result = bl.solve(made.problem, method(shape, solver), devices=count, **given)
    assert result.status == "finished", result.message
    held = (result.x, dict(result.y), result.weights, result.history.validation)
    if jax.process_index() == 0:
        np.savez(out, *[np.asarray(leaf) for leaf in jax.tree.leaves(held)])


def timer(tasks: str, devices: str) -> None:
    """Milliseconds a step, as JSON."""
    import bilevel as bl

    made = ready("fashion", int(tasks), 100)
    solver, given = bl.MORBiT(0.05, 0.01), {"x": made.x, "progress": False, "every": 10**9}
    taken = []
    for _ in range(ROUNDS):
        result = bl.solve(made.problem, solver, steps=TIMED_STEPS, devices=int(devices), **given)
        taken.append(1e3 * (result.seconds - result.compile_seconds) / TIMED_STEPS)
    print(json.dumps(taken[1:]))


def many(shape: str, tasks: int) -> tuple[Any, Any, Any]:
    """A problem of very many tasks in these shapes, x and y."""
    import jax

    import bilevel as bl

    like = ready(shape, 2, {"letter": 128, "fashion": 100}[shape])
    group, rng = like.problem.groups[0], np.random.default_rng(0)

    def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        if shape == "letter":
            points = rng.normal(size=(tasks, count, 16)).astype(np.float32)
            return points, np.where(points.sum(2) > 0, 1, -1).astype(np.float32)
        pixels = np.frombuffer(rng.bytes(tasks * count * 784), np.uint8).reshape(tasks, count, 784)
        return pixels, rng.integers(2, size=(tasks, count))

    train, validation = (160, 80) if shape == "letter" else (8, 128)
    stack = bl.Task.stack(train=rows(train), validation=rows(validation))
    batches = {"lower_batch": group.lower_batch, "upper_batch": group.upper_batch}
    problem = bl.Problem(group.upper, group.lower, stack, like.problem.constraint, **batches)
    y = like.problem.by_name(like.problem.starting_y(None, jax.random.key(0)))
    return problem, like.x, next(iter(y.values()))


def sampled_timer(shape: str, tasks: str, drawn: str, devices: str) -> None:
    """Milliseconds a step that draws tasks, as JSON."""
    import time

    import jax

    import bilevel as bl
    from bilevel._run import loop
    from bilevel._run.devices import Layout
    from bilevel._run.run import Run

    problem, x, y = many(shape, int(tasks))
    solver = bl.MORBiT(0.001, 0.01, weighting=bl.weightings.SimplexAscent(1e-4))
    solver = solver if drawn == tasks else solver.replace(sampling=bl.sampling.Mixture(int(drawn)))
    layout, steps = Layout.of(int(devices), problem, x), SAMPLED_STEPS[shape]
    run = Run(problem, solver, x, y, 0, (ROUNDS + 1) * steps, layout=layout)
    carry = layout.laid_out(loop.first(solver, run.placed, run.start(), run.key))
    taken = []
    for k in range(ROUNDS + 1):  # the first compiles
        began = time.perf_counter()
        there = (carry, run.key, (k + 1) * steps, run.steps)
        carry = jax.block_until_ready(loop.steps(solver, run.placed, *there, layout=layout))
        taken.append(1e3 * (time.perf_counter() - began) / steps)
    assert bool(carry.finite), "diverged"
    print(json.dumps(taken[1:]))


# ------------------------------------------------------------------ the studies


def start(*arguments: str, devices: int = 1, threads: int = 1, script: str = __file__) -> subprocess.Popen:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(threads)}
    command = [sys.executable, script, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def apart(one: str, other: str) -> float:
    both = np.load(one), np.load(other)
    return max(float(np.max(np.abs(both[0][name] - both[1][name]))) for name in both[0].files)


def agree(*wanted: str) -> None:
    print(f"{TASKS} tasks, {STEPS} steps, float64: the largest difference from one device\n")
    print(f"{'':10}{'':10}{'two devices':>14}{'two processes':>16}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for shape in ("fashion", "letter"):
            for solver in wanted or SOLVERS:
                files = [str(Path(folder) / f"{shape}-{solver}-{kind}.npz") for kind in ("one", "two", "processes")]
                finish(start("worker", shape, solver, files[0], "1"))
                finish(start("worker", shape, solver, files[1], "2", devices=2))
                address = f"127.0.0.1:{free_port()}"
                both = [start("worker", shape, solver, files[2], address, str(rank)) for rank in range(2)]
                for one in both:
                    finish(one)
                found = [apart(files[0], other) for other in files[1:]]
                worst = max(worst, *found)
                print(f"{shape:10}{solver:10}{found[0]:14.1e}{found[1]:16.1e}", flush=True)
    print(f"\nThe largest is {worst:.1e}; the goal is 1e-12.")


def finish(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=3600)
    if process.returncode:
        raise SystemExit(f"a run ended with code {process.returncode}")
    return out


def speed() -> None:
    settings = {"64 on one device": ("64", "1"), "64 on two devices": ("64", "2"), "32 on one device": ("32", "1")}
    taken: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(TURNS):
        for name, s in settings.items():
            taken[name] += json.loads(finish(start("timer", *s, devices=int(s[1]))))
    for name, own in taken.items():
        print(f"{name:20}{np.median(own):8.2f} ms a step (from {min(own):.2f} to {max(own):.2f})")
    one, two, half = (float(np.median(own)) for own in taken.values())
    print(f"\ntwo devices over one: {one / two:.2f} times as fast; the goal is 1.6")
    print(f"of a step on two devices, sums over devices and waiting: {100 * max(0, 1 - half / two):.0f} %")


def sampled() -> None:
    settings = {
        "64 of 10,000 on one device": ("10000", "64", "1"),
        "64 of 10,000 on two devices": ("10000", "64", "2"),
        "32 of 5,000 on one device": ("5000", "32", "1"),
        "all of 64 on one device": ("64", "64", "1"),
    }
    for shape in SAMPLED_STEPS:
        taken: dict[str, list[float]] = {name: [] for name in settings}
        for _ in range(TURNS):
            for name, s in settings.items():
                taken[name] += json.loads(finish(start("sampled_timer", shape, *s, devices=int(s[2]))))
        for name, own in taken.items():
            print(f"{shape:10}{name:30}{np.median(own):8.3f} ms a step (from {min(own):.3f} to {max(own):.3f})")
        one, two, half, _ = (float(np.median(own)) for own in taken.values())
        print(f"{shape:10}two devices over one: {one / two:.2f} times as fast", end="; ")
        print(f"of a step on two, sums and waiting: {100 * max(0, 1 - half / two):.0f} %\n", flush=True)


if __name__ == "__main__":
    modes = (agree, speed, sampled, worker, timer, sampled_timer)
    {mode.__name__: mode for mode in modes}[sys.argv[1]](*sys.argv[2:])
