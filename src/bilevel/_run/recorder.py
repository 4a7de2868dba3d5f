"""Keeps what a run is evaluated to, and makes the result of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.problem.problem import Grouped
from bilevel.results.result import History, Iterate, Result


@jax.jit
def evaluate(problem: Grouped, x: Any, y: tuple) -> tuple[jax.Array, jax.Array | None]:
    """Validation and test losses on all the data."""
    return problem.validation_losses(x, y), problem.test_losses(x, y)


class Evaluated(NamedTuple):
    """A point (x, y, weights) and its losses."""

    point: tuple
    validation: np.ndarray
    test: np.ndarray | None


class Recorder:
    """The evaluations of one run."""

    def __init__(self, problem: Grouped, solver: Any, seed: int):
        self.problem, self.solver, self.seed = problem, solver, seed
        self.rows: list[dict[str, Any]] = []
        self.best: Evaluated | None = None
        self.since_best = 0
        self.began = time.perf_counter()

    @property
    def steps(self) -> list[int]:
        """The steps evaluated so far."""
        return [row["step"] for row in self.rows]

    @property
    def worst(self) -> float:
        """The largest validation loss, last evaluated."""
        return float(np.max(self.rows[-1]["validation"]))

    @property
    def mean(self) -> float:
        """The mean validation loss, last evaluated."""
        return float(np.mean(self.rows[-1]["validation"]))

    def add(self, step: int, run: Any, *, started: bool = False, callback: Callable | None = None) -> bool:
        """Evaluates a run here; returns whether the callback asks to stop."""
        state = run.state
        since = max(1, step - self.rows[-1]["step"]) if self.rows else 1
        losses = evaluate(self.problem, state.x, state.y)
        # One transfer for all: each costs about as much as a small step.
        (validation, test), info, watch, weights = jax.device_get((losses, run.info, run.watch, state.weights))
        self.rows.append(
            {
                "step": step,
                "seconds": time.perf_counter() - self.began,
                "validation": validation,
                "test": test,
                "weights": weights,
                "direction_norm": float("nan") if started else float(np.sqrt(watch.squares / since)),
                "upper_rate": float(info.upper_rate),
                "lower_rate": info.lower_rate,
                "weights_rate": float(info.weights_rate),
                "weights_travel": float(watch.travel),
                "weights_swing": float(np.max(watch.high - watch.low)),
            }
        )
        if self.best is None or not self.problem.ranks or self.worst < np.max(self.best.validation):
            self.best, self.since_best = Evaluated((state.x, state.y, state.weights), validation, test), 0
        else:
            self.since_best += 1
        return bool(callback(self.rows[-1])) if callback is not None else False

    def result(self, run: Any, step: int, status: str, message: str) -> Result:
        """The run, whole."""
        state, row, best = run.state, self.rows[-1], self.best
        assert best is not None
        last = Evaluated((state.x, state.y, state.weights), row["validation"], row["test"])
        return Result(
            problem=self.problem,
            solver=self.solver,
            last=self._iterate(last),
            best=self._iterate(best),
            random=self._iterate(self._evaluated(run.random)),
            average=self._iterate(self._evaluated(run.average)),
            history=self._history(),
            status=status,
            message=message,
            steps=step,
            seconds=time.perf_counter() - self.began,
            seed=self.seed,
        )

    def _evaluated(self, point: tuple) -> Evaluated:
        return Evaluated(point, *jax.device_get(evaluate(self.problem, point[0], point[1])))

    def _iterate(self, seen: Evaluated) -> Iterate:
        x, y, weights = seen.point
        return Iterate(x, self.problem.by_name(y), np.asarray(weights), seen.validation, seen.test)

    def _history(self) -> History:
        def column(name: str) -> Any:
            values = [row[name] for row in self.rows]
            return None if values[0] is None else np.stack([np.asarray(value) for value in values])

        return History(**{name: column(name) for name in self.rows[0]})
