"""What each remedy against overfitting brings, alone and together: worst loss on rows that nobody saw.

    python benchmarks/unseen/parts.py               # says first how many runs are left; resumable
    python benchmarks/unseen/page.py                # the page, from the records

A network with one layer of 32 features as x and a linear head a task as y, by `bl.Tandem` with nothing given, on four
problems that are not in the study. "plain" is a run as it was before there were remedies: half of a task's rows train,
half validate, and the last point is taken. Each remedy is one change to it. The rows to fit are the same for all: what
selects no longer trains. Test rows are only scored, with one exception, the row "ideal moment", which nobody could have
chosen: the lowest worst test loss along the plain run.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from problems import Draw, drawn

import bilevel as bl
from bilevel.weightings import Average, Folds, Regret, Shrunk, SimplexAscent, UpperBound

RECORDS = Path(__file__).parent / "parts.csv"
FIELDS = ["problem", "draw", "objective", "remedy", "worst", "mean", "seconds"]
PROBLEMS = ("noisy", "competing", "vehicle", "dna")
FEATURES, STEPS, EVALUATIONS, FOLDS = 32, 2000, 40, 2
SELECTION = 0.2  # of the rows to fit, where rows select
DECAY = 1e-3  # of |x|^2 beside f
PULL = 0.1  # to uniform weights
RATE = 1e-3  # Adam's, in place of relative steps
OBJECTIVES = {"min-max": SimplexAscent(), "min-avg": Average()}


# ------------------------------------------------------------------ problems


def standard(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """What inputs are standardised by."""
    return draw.fit.X.mean(axis=0), draw.fit.X.std(axis=0) + 1e-9


def tasks_of(draw: Draw, selection: float, seed: int) -> list[bl.Task]:
    """The tasks that are scored, inputs standardised, classes numbered in each."""
    mean, spread = standard(draw)
    tasks = []
    for name in draw.scored:
        fit, test = (
            (((rows.X - mean) / spread)[rows.task == name].astype(np.float32), rows.y[rows.task == name])
            for rows in (draw.fit, draw.test)
        )
        classes = np.unique(fit[1])
        own, hidden = ((X, np.searchsorted(classes, y).astype(np.int32)) for X, y in (fit, test))
        (task,) = bl.split(own, stratify=own[1], validation=(1 - selection) / 2, selection=selection, test=0, seed=seed)
        kept = {"train": task.train, "validation": task.validation, "test": hidden, "name": name}
        tasks.append(bl.Task(**kept, **({"selection": task.selection} if selection else {})))
    return tasks


def problem_of(tasks: list[bl.Task], columns: int, seed: int) -> Any:
    """A network and heads, with where they start."""
    return bl.problems.representation(tasks, (columns, FEATURES), lower_batch=8, upper_batch=32, seed=seed)


def decayed(problem: bl.Problem) -> bl.Problem:
    """f + DECAY |x|^2."""
    (group,) = problem.groups
    return problem.replace(groups=(dataclasses.replace(group, upper=Decayed(group.upper)),))


class Decayed:
    """A loss with the penalty of x."""

    def __init__(self, loss: Any):
        self.loss = loss

    def __call__(self, x: Any, y: Any, batch: Any) -> jax.Array:
        """Both."""
        return self.loss(x, y, batch) + DECAY * size(x)


def size(x: Any) -> jax.Array:
    """|x|^2."""
    return sum(jax.numpy.sum(leaf**2) for leaf in jax.tree.leaves(x))


# ------------------------------------------------------------------ remedies


class Lowest:
    """A callback that keeps x and y where the mean, or the largest, of the losses on some rows is lowest."""

    def __init__(self, rows: str = "selection", value: Any = np.mean):
        self.rows, self.value, self.lowest, self.point = rows, value, np.inf, None

    def __call__(self, seen: Any) -> None:
        """Keeps it."""
        if (value := float(self.value(seen[self.rows]))) < self.lowest:
            self.lowest, self.point = value, jax.device_get((seen["x"], seen["y"]))


def losses(problem: bl.Problem, x: Any) -> np.ndarray:
    """On test rows, of heads that are fitted again to all rows that may be."""
    roles = ["train", "validation", *(["selection"] if problem.groups[0].selection is not None else [])]
    return bl.refit(problem, x, rows=roles).test_losses


def solved(ready: Any, weighting: Any, seed: int, problem: Any = None, **more: Any) -> Any:
    """A run; a callback is passed on."""
    solver = bl.Tandem(weighting=weighting, **{k: more.pop(k) for k in list(more) if k != "callback"})
    every = STEPS // EVALUATIONS
    problem = ready.problem if problem is None else problem
    return bl.solve(problem, solver, ready.x, steps=STEPS, seed=seed, every=every, progress=False, **more)


def without_selection(draw: Draw, weighting: Any, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Plain, and what changes one thing of it."""
    columns, most = draw.fit.X.shape[1], isinstance(weighting, SimplexAscent)
    tasks = tasks_of(draw, 0.0, seed)
    ready = problem_of(tasks, columns, seed)
    plain = solved(ready, weighting, seed)
    yield "plain", plain.last.test_losses
    yield "ideal moment", plain.history.test[np.argmin(plain.history.test.max(axis=1))]
    yield "averaged iterates", plain.average.test_losses
    yield "heads refitted", losses(ready.problem, plain.last)
    yield "steps not relative to x", solved(ready, weighting, seed, upper_lr=RATE).last.test_losses
    found = solved(ready, weighting, seed, decayed(ready.problem))
    yield "penalty of x", found.last.test_losses - DECAY * size(found.x)
    crossed = problem_of(bl.cross_fit(tasks, FOLDS, seed), columns, seed)
    found = solved(crossed, Folds(FOLDS, weighting), seed)
    yield "cross-fitted, refitted", losses(crossed.problem, found.last)
    if most:
        errors = bl.loss_errors(ready.problem, solved(ready, Average(), seed).last)
        yield "weights shrunk", solved(ready, Shrunk(errors), seed).last.test_losses
        yield "upper bounds", solved(ready, UpperBound(errors), seed).last.test_losses
        yield "pull to uniform", solved(ready, SimplexAscent(pull=PULL), seed).last.test_losses
        baselines = bl.baselines(ready.problem, x=ready.x)
        yield "regrets", solved(ready, Regret(baselines), seed).last.test_losses


def with_selection(draw: Draw, weighting: Any, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """What goes by selection rows, and all that helps together."""
    columns = draw.fit.X.shape[1]
    tasks = tasks_of(draw, SELECTION, seed)
    ready, kept = problem_of(tasks, columns, seed), Lowest()
    found = solved(ready, weighting, seed, callback=kept)
    yield "best by worst selection loss", found.best.test_losses
    by_mean = np.argmin(found.history.selection.mean(axis=1))
    yield "best by mean selection loss", found.history.test[by_mean]
    yield "best by mean, refitted", losses(ready.problem, kept.point[0])
    crossed, kept = problem_of(bl.cross_fit(tasks, FOLDS, seed), columns, seed), Lowest()
    inside = weighting
    if isinstance(weighting, SimplexAscent):
        pilot = solved(ready, Average(), seed)
        inside = Shrunk(bl.loss_errors(ready.problem, pilot.best, role="selection") / FOLDS**0.5)
    solved(crossed, Folds(FOLDS, inside), seed, callback=kept)
    yield "together", losses(crossed.problem, kept.point[0])


# ------------------------------------------------------------------ runs


def main() -> None:
    """Runs what is not yet in the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--records", type=Path, default=RECORDS)
    given = parser.parse_args()
    old = list(csv.DictReader(given.records.read_text().splitlines())) if given.records.exists() else []
    done = {(row["problem"], int(row["draw"]), row["objective"]) for row in old}
    every = [(p, d, o) for d in range(given.draws) for p in given.problems for o in OBJECTIVES]
    left = [key for key in every if key not in done]
    print(f"{len(left)} of {len(every)} sets of runs to make, about {len(left)} minutes.", flush=True)
    with given.records.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if not old:
            writer.writeheader()
        for problem, number, objective in left:
            draw, rows, start = drawn(problem, number), [], time.process_time()
            for part in (without_selection, with_selection):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    for remedy, found in part(draw, OBJECTIVES[objective], number):
                        own = {"problem": problem, "draw": number, "objective": objective, "remedy": remedy}
                        own |= {"worst": f"{np.max(found):.5f}", "mean": f"{np.mean(found):.5f}"}
                        rows.append(own | {"seconds": f"{time.process_time() - start:.1f}"})
                        print(*rows[-1].values(), flush=True)
            writer.writerows(rows)  # a set at once: one that was cut is made again
            file.flush()
            jax.clear_caches()  # programs of hundreds of runs are more than a process may map


if __name__ == "__main__":
    main()
