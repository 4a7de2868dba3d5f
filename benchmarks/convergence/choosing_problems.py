"""The problems of docs/choosing.md with nothing given, by two versions: what the default gains, with intervals.

    python -m benchmarks.convergence.choosing_problems --before /tmp/before/src --seeds 10

Every run is a process' own; x of both versions is judged by this one, with every lower problem solved: the worst
selection loss where there are such rows, the worst validation loss where there are none.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import bilevel as bl

try:
    from bilevel.studies.comparison.benchmarks import BENCHMARKS
except ImportError:  # of the other version
    from bilevel.comparison.benchmarks import BENCHMARKS  # pyright: ignore[reportMissingImports]

PROBLEMS = ("noisy-ball", "sinusoids", "letter")
RESAMPLES = 10_000


def ends(name: str, seeds: int) -> list[dict[str, Any]]:
    """x of every seed, and by which solver."""
    found = []
    for seed in range(seeds):
        where = BENCHMARKS[name]
        ready = where.start(seed, "")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = bl.solve(ready.problem, x=ready.x, y=where.y, steps=where.steps, seed=seed, progress=False)
        found.append({"x": jax.tree.map(np.asarray, result.x), "solver": type(result.solver).__name__})
    return found


def judged(name: str, seed: int, x: Any) -> float:
    """The worst loss of x: where a run begins, y is fitted to x."""
    where = BENCHMARKS[name]
    ready = where.start(seed, "")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = bl.solve(ready.problem, bl.MORBiT(1e-12, 1e-12), x=x, y=where.y, steps=1, progress=False).history
    assert history.fitted[0]
    losses = history.validation if history.selection is None else history.selection
    return float(np.max(losses[0]))


def main() -> None:
    """The command."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--before", type=Path, help="the source folder of the other version")
    parse.add_argument("--seeds", type=int, default=10)
    parse.add_argument("--problems", nargs="*", default=list(PROBLEMS), choices=list(BENCHMARKS))
    parse.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # problem, file: one process
    given = parse.parse_args()
    if given.one:
        Path(given.one[1]).write_bytes(pickle.dumps(ends(given.one[0], given.seeds)))
        return
    for name in given.problems:
        worst, solvers = [], []
        for source in (given.before, None):
            with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.convergence.choosing_problems",
                    "--seeds",
                    str(given.seeds),
                ]
                path = {} if source is None else {"PYTHONPATH": str(source)}
                subprocess.run(
                    [*command, "--seeds", str(given.seeds), "--one", name, file.name], check=True, env=os.environ | path
                )
                found = pickle.loads(Path(file.name).read_bytes())
            worst.append(np.array([judged(name, seed, own["x"]) for seed, own in enumerate(found)]))
            solvers.append(found[0]["solver"])
        ratio = np.log(worst[1] / worst[0])
        draws = np.random.default_rng(0).integers(len(ratio), size=(RESAMPLES, len(ratio)))
        low, high = np.exp(np.percentile(ratio[draws].mean(axis=1), [2.5, 97.5]))
        print(
            f"{name:10} {solvers[0]} {worst[0].mean():.4g}, now {solvers[1]} {worst[1].mean():.4g}: ratio "
            f"{np.exp(ratio.mean()):.3f} [{low:.3f}, {high:.3f}], lower in {np.sum(ratio < 0)} of {len(ratio)} seeds",
            flush=True,
        )


if __name__ == "__main__":
    main()
