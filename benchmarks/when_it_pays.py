"""Where min-max (of losses, of regrets) beats min-avg on rows that nobody saw, and where it harms: a map.

Tasks are drawn. Each predicts t = z_i . tanh(2 U' a) + noise from inputs a, by features tanh(a x) that all share (x)
and a head of its own (y_i); x is fitted to validation rows, and the iterate is chosen by selection rows. What varies:

    width      features in x; four are enough for most tasks, four others for the tasks that compete
    rows       of each task, for training; as many for validation, and as many for selection
    apart      noise: equal, or more than three times as large in every fourth task
    compete    how far the features that every fourth task needs (not one of the noisy ones) are others: 0, 0.5 or 1
    tasks      how many

Reported of each run: the worst and the mean loss on 500 test rows a task, and the worst regret there, which is the
loss above the variance of the noise. The baselines that `Regret` is given are losses on selection rows of one ridge
regression a task: no knowledge of how the tasks were drawn. All runs of one shape share
two compiled programs. One line a run in benchmarks/records/when_it_pays.csv; what is there is not run again.

    python benchmarks/when_it_pays.py            # says first how long it takes
    python docs/make_when_it_pays.py             # the page and the figure, from the records
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import bilevel as bl
from bilevel.weightings import Average, Regret

RECORDS = Path(__file__).parent / "records" / "when_it_pays.csv"
WIDTHS, ROWS, APART, COMPETE, TASKS = (2, 4, 8), (20, 100), (0, 1), (0.0, 0.5, 1.0), (4, 12)
OBJECTIVES = ("average", "loss", "regret")
DRAWS, STEPS, INPUTS, NEEDED, TEST = 10, 1500, 10, 4, 500
QUIET, LOUD = 0.3, 1.0  # standard deviations of noise; a signal's is about 1
RIDGE = 1e-3
SECONDS = 0.5  # a run, with its share of compiling
NUMBERS = ("worst", "mean", "regret")  # on test rows


class Setting(NamedTuple):
    """One run."""

    width: int
    rows: int
    tasks: int
    apart: int
    compete: float
    draw: int
    objective: str


def settings() -> list[Setting]:
    """All of them, draw by draw, so that what there is after any time is a map."""
    every = itertools.product(range(DRAWS), ROWS, TASKS, WIDTHS, APART, COMPETE, OBJECTIVES)
    return [
        Setting(width, rows, tasks, *others, draw, objective) for draw, rows, tasks, width, *others, objective in every
    ]


# ------------------------------------------------------------------ problems


def upper(x, y, batch):
    return jnp.mean((jnp.tanh(batch[0] @ x) @ y - batch[1]) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + RIDGE * jnp.sum(y**2)


class Drawn(NamedTuple):
    """Tasks, with what is known of them as they were drawn."""

    tasks: list[bl.Task]
    noise: np.ndarray  # its variance in each task


def drawn(setting: Setting) -> Drawn:
    """The tasks of a setting; the same inputs, heads and noise whatever its width, competition and objective."""
    rng = np.random.default_rng([setting.draw, setting.rows, setting.tasks])
    basis = np.linalg.qr(rng.normal(size=(INPUTS, INPUTS)))[0]
    most, others = basis[:, :NEEDED], basis[:, NEEDED : 2 * NEEDED]
    angle = np.pi / 2 * setting.compete
    tasks, noise = [], []
    for i in range(setting.tasks):
        own = np.cos(angle) * most + np.sin(angle) * others if i % 4 == 0 else most
        deviation = LOUD if setting.apart and i % 4 == 1 else QUIET
        head = rng.normal(size=NEEDED)
        head *= np.sqrt(NEEDED) / np.linalg.norm(head)
        parts = [_rows(rng, own, head, deviation, count) for count in (*[setting.rows] * 3, TEST)]
        train, validation, selection, test = parts
        start = np.zeros(setting.width, "f4")
        tasks.append(bl.Task(train, validation, test, selection=selection, name=f"{i}", y=start))
        noise.append(deviation**2)
    return Drawn(tasks, np.array(noise))


def _rows(rng, own, head, deviation, count):
    inputs = rng.normal(size=(count, INPUTS))
    signal = np.tanh(2 * inputs @ own) @ head / np.sqrt(NEEDED)
    return inputs.astype("f4"), (signal + deviation * rng.normal(size=count)).astype("f4")


def alone(task: bl.Task) -> float:
    """What a task reaches by itself: a ridge regression on its training rows, chosen on validation rows."""
    (inputs, targets), square = task.train, np.eye(INPUTS)
    fits = [np.linalg.solve(inputs.T @ inputs + s * square, inputs.T @ targets) for s in 10.0 ** np.arange(-1, 4)]
    best = min(fits, key=lambda fit: np.mean((task.validation[0] @ fit - task.validation[1]) ** 2))
    return float(np.mean((task.selection[0] @ best - task.selection[1]) ** 2))


# ------------------------------------------------------------------ runs


def run(setting: Setting) -> dict[str, float]:
    """Worst loss, mean loss and worst regret on test rows."""
    tasks, noise = drawn(setting)
    x = 0.5 * np.random.default_rng(setting.draw).normal(size=(INPUTS, setting.width)).astype("f4")
    if setting.objective == "average":
        weighting = Average()
    else:  # with baselines 0, regrets are losses: one program for both
        known = [alone(task) * (setting.objective == "regret") for task in tasks]
        weighting = Regret(np.array(known, "f4"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = bl.Problem(upper, lower, tasks)
        result = bl.solve(problem, bl.MORBiT(weighting=weighting), jnp.asarray(x), steps=STEPS, progress=False)
    losses = np.asarray(result.best.test_losses, float)
    return {"worst": losses.max(), "mean": losses.mean(), "regret": (losses - noise).max()}


def kept() -> dict[Setting, dict[str, float]]:
    """What the records have."""
    if not RECORDS.exists():
        return {}
    with RECORDS.open(newline="") as file:
        return {_setting(row): {name: float(row[name]) for name in NUMBERS} for row in csv.DictReader(file)}


def _setting(row: dict[str, str]) -> Setting:
    counts = {name: int(row[name]) for name in ("width", "rows", "tasks", "apart", "draw")}
    return Setting(**counts, compete=float(row["compete"]), objective=row["objective"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs what the records do not have.")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no run starts later than this")
    options = parser.parse_args()
    begun, have = time.perf_counter(), kept()
    left = [setting for setting in settings() if setting not in have]
    minutes = len(left) * SECONDS / 60
    print(f"{len(left)} of {len(settings())} runs are left, about {minutes:.0f} minutes of one core.", flush=True)
    new = not RECORDS.exists()
    with RECORDS.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow((*Setting._fields, *NUMBERS))
        for i, setting in enumerate(left):
            if time.perf_counter() - begun > 60 * options.minutes:
                break
            numbers = run(setting)
            writer.writerow((*setting, *(f"{numbers[name]:.4g}" for name in NUMBERS)))
            file.flush()
            if i % 100 == 99:
                spent = (time.perf_counter() - begun) / 60
                print(f"{i + 1} runs in {spent:.1f} minutes, {spent * (len(left) / (i + 1) - 1):.0f} more", flush=True)


if __name__ == "__main__":
    main()
