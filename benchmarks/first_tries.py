"""Four problems as a new user would try them, and what the summary says of each: letters, digits, clinics, 500 tasks.

None of them gives rates or a solver. Few rows and wrong labels make x overfit (letters, digits, clinics); 500 tasks
have 1,000 steps, which batches found too few. It runs with this version of the library and with old ones;
tests/results/test_first_tries.py holds what summaries have to say.

    python benchmarks/first_tries.py                    # all four, figures only
    python benchmarks/first_tries.py letters --text     # one of them, with the summary
    python benchmarks/first_tries.py letters --selection --draws 3
    python benchmarks/first_tries.py --records benchmarks/records/first-tries.json    # for docs/make_findings.py
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import bilevel as bl


class Try(NamedTuple):
    """A problem, where x and y start, and how many steps are taken."""

    problem: Any
    x: Any
    y: Any
    steps: int


def task(parts: dict[str, Any], name: str, selection: bool) -> bl.Task:
    """A task; selection rows are left out where they are not to be used."""
    kept = {role: rows for role, rows in parts.items() if role != "selection" or selection}
    return bl.Task(**kept, name=name)


def pair(points, labels, classes, rows, flips, rng, selection, name):
    """Two classes as a task: `rows` for training, as many for validation, half for selection, the rest for testing."""
    own = rng.permutation(np.flatnonzero(np.isin(labels, classes)))
    targets = (labels[own] == classes[1]).astype(int)
    targets = np.where(rng.random(len(own)) < flips, 1 - targets, targets)
    ends = [0, rows, 2 * rows, 2 * rows + rows // 2, len(own)]
    roles = ("train", "validation", "selection", "test")
    parts = {role: (points[own[a:b]], targets[a:b]) for role, a, b in zip(roles, ends[:-1], ends[1:], strict=True)}
    return task(parts, name, selection)


def letters(seed: int = 0, selection: bool = False) -> Try:
    """Ten small pairs of letters, of three of which 15 % of the labels are wrong; a network 16 -> 32."""
    data, rng = bl.datasets.letter(), np.random.default_rng(seed)
    points = ((data.features - 7.5) / 7.5).astype(np.float32)
    chosen = [tuple(two) for two in rng.choice(26, (10, 2), replace=False)]
    tasks = [
        pair(points, data.labels, two, 70, 0.15 * (i < 3), rng, selection, f"{chr(65 + two[0])}{chr(65 + two[1])}")
        for i, two in enumerate(chosen)
    ]
    ready = bl.problems.representation(tasks, (16, 32), lower_batch=8, upper_batch=32)
    return Try(ready.problem, ready.x, None, 2000)


def digits(seed: int = 0, selection: bool = False) -> Try:
    """Ten pairs of digits with noise in the images; a network 64 -> 32."""
    (points, labels), rng = load_digits(return_X_y=True), np.random.default_rng(seed)
    points = (points / 16 + 0.4 * rng.normal(size=points.shape)).astype(np.float32)
    tasks = [
        pair(points, labels, (i, (i + 3) % 10), 60, 0.0, rng, selection, f"{i} or {(i + 3) % 10}") for i in range(10)
    ]
    ready = bl.problems.representation(tasks, (64, 32), lower_batch=8, upper_batch=32)
    return Try(ready.problem, ready.x, None, 2000)


def clinics(seed: int = 0, selection: bool = False) -> Try:
    """Twelve clinics of few patients, ill or not by ten measurements; a network 10 -> 24."""
    rng = np.random.default_rng(seed)
    tasks = []
    for i in range(12):
        truth = rng.normal(size=(10, 2))

        def patients(count, truth=truth):
            measured = rng.normal(size=(count, 10))
            ill = np.maximum(measured @ truth, 0).sum(axis=1) + 0.5 * rng.normal(size=count) > 1.5
            return measured.astype(np.float32), ill.astype(int)

        roles = {"train": 40, "validation": 40, "selection": 20, "test": 300}
        tasks.append(task({role: patients(count) for role, count in roles.items()}, f"clinic {i}", selection))
    ready = bl.problems.representation(tasks, (10, 24), lower_batch=8, upper_batch=32)
    return Try(ready.problem, ready.x, None, 2000)


def squared(x, y, batch):
    return jnp.mean((jnp.tanh(batch[0] @ x) @ y - batch[1]) ** 2)


def penalised(x, y, batch):
    return squared(x, y, batch) + 1e-3 * jnp.sum(y**2)


def many(seed: int = 0, selection: bool = False) -> Try:
    """500 tasks that share eight features; 1,000 steps of batches."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(10, 8)) / np.sqrt(10)
    tasks = []
    for i in range(500):
        head = rng.normal(size=8)

        def rows(count, head=head):
            inputs = rng.normal(size=(count, 10)).astype(np.float32)
            return inputs, (np.tanh(2 * inputs @ shared) @ head + 0.1 * rng.normal(size=count)).astype(np.float32)

        counts = {"train": 40, "validation": 40, "selection": 20, "test": 40}
        tasks.append(task({role: rows(count) for role, count in counts.items()}, f"{i}", selection))
    problem = bl.Problem(squared, penalised, tasks, lower_batch=8, upper_batch=8)
    return Try(
        problem, jnp.asarray(rng.normal(size=(10, 8)) / np.sqrt(10), jnp.float32), jnp.zeros(8, jnp.float32), 1000
    )


TRIES: dict[str, Callable[..., Try]] = {"letters": letters, "digits": digits, "clinics": clinics, "many": many}


def run(name: str, seed: int = 0, selection: bool = False, times: int = 1) -> bl.Result:
    """The result, with what is recommended."""
    made = TRIES[name](seed, selection)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bl.solve(made.problem, x=made.x, y=made.y, steps=times * made.steps, seed=seed, progress=False)


def kept(name: str, seed: int, result: bl.Result) -> dict[str, Any]:
    """What a record has of a try."""
    figures = {"validation": result.worst, "test": result.last.test_worst, "best_test": result.best.test_worst}
    return {"name": name, "draw": seed, "steps": result.steps, **figures, "summary": result.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs the four, and prints figures.")
    parser.add_argument("names", nargs="*", default=list(TRIES))
    parser.add_argument("--text", action="store_true", help="the summary of the first draw")
    parser.add_argument("--selection", action="store_true", help="with selection rows")
    parser.add_argument("--draws", type=int, default=1)
    parser.add_argument("--times", type=int, default=1, help="of the steps")
    parser.add_argument("--records", type=Path, help="a JSON file of figures and summaries")
    options = parser.parse_args()
    records = []
    for name in options.names:
        for seed in range(options.draws):
            result = run(name, seed, options.selection, options.times)
            records.append(kept(name, seed, result))
            figures = (
                f"{result.worst:.4f}, test {result.last.test_worst:.4f}, best by test {result.best.test_worst:.4f}"
            )
            print(f"{name}, draw {seed}: worst validation {figures}, after {result.steps} steps", flush=True)
            if options.text and seed == 0:
                print(result.summary())
    if options.records:
        options.records.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
