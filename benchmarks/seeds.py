"""Ten seeds at once against ten runs in a row, at the shapes of the letter problem.

Both are compiled first, then run in turn, so that whatever else the machine does slows both; the ratio is the median
over pairs of neighbouring runs. `batched` is the way of accelerators, shown for comparison. The last iterates of the
threads and of the runs in a row must agree to the last bit.

    python benchmarks/seeds.py
    python benchmarks/seeds.py --repeats 9 --steps 2000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import bilevel as bl
from bilevel._run.driver import run_lanes
from bilevel._run.progress import Quiet
from bilevel._run.run import Run


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Times ten seeds at once against ten runs in a row.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    ready = bl.problems.hyperparameters(bl.datasets.letter_pairs(16, rows=1440), 128, lower_batch=8, upper_batch=8)
    solver = bl.MORBiT(0.03, 0.3, bl.hypergradients.Tracked(0.3), bl.weightings.SimplexAscent(5e-3))
    same = {"steps": options.steps, "progress": False}
    runs = [Run(ready.problem, solver, ready.x, None, seed, options.steps) for seed in range(options.seeds)]
    ways = {
        "in a row": lambda: [bl.solve(ready.problem, solver, ready.x, seed=s, **same) for s in range(options.seeds)],
        "threads": lambda: bl.solve(ready.problem, solver, ready.x, seeds=options.seeds, **same),
        "batched": lambda: run_lanes(runs, Quiet().split(len(runs))),
    }
    ends = {name: [result.x for result in way()] for name, way in ways.items()}  # compiles all
    pairs = zip(jax.tree.leaves(ends["in a row"]), jax.tree.leaves(ends["threads"]), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs), "threads and single runs end at different x"
    times = np.array([[seconds(way) for way in ways.values()] for _ in range(options.repeats)])
    print(f"{options.seeds} seeds, {options.steps} steps each, {options.repeats} repeats; threads equal to the bit")
    for name, column in zip(ways, times.T, strict=True):
        ratio = times[:, 0] / column
        spread = f"({ratio.min():.2f} to {ratio.max():.2f})"
        print(f"{name:10} {np.median(column):7.2f} s   {np.median(ratio):5.2f} times as fast {spread}")


if __name__ == "__main__":
    main()
