"""One run: compiled calls, and between them evaluation, measuring, progress and the decision to go on."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel._run import loop
from bilevel._run.progress import Bar
from bilevel._run.recorder import Recorder
from bilevel.problem.problem import Grouped
from bilevel.results.result import Result
from bilevel.solvers._base.bilevel import measure
from bilevel.solvers._base.solver import Info

Callback = Callable[[dict[str, Any]], Any]

CALL_SECONDS = 0.5  # about how long one compiled call may take, so that the bar moves and Ctrl-C is heard


class Plan(NamedTuple):
    """How long a run is and what happens along it."""

    steps: int
    every: int
    patience: int | None
    callback: Callback | None


class Drive:
    """One run."""

    def __init__(self, problem: Grouped, solver: Any, seed: int, plan: Plan, halt: threading.Event | None = None):
        key = jax.random.fold_in(jax.random.key(seed), 1)
        self.problem, self.solver, self.key, self.seed = problem, solver, key, seed
        self.steps, self.every, self.patience, self.callback = plan
        self.halt = threading.Event() if halt is None else halt
        # Reservoir sampling decided beforehand: step k replaces the random iterate with probability 1 / (k + 1).
        self.picks = np.flatnonzero(np.random.default_rng(seed).random(self.steps) * np.arange(1, self.steps + 1) < 1)
        self.refresh_key = jax.random.fold_in(key, 2**31)  # apart from the keys of steps
        self.steps_per_second = None
        self.remeasure: set[int] = set()

    def go(self, state: Any, shown: Bar) -> Result:
        """Steps until the end, or until something ends the run before."""
        # Not when `every` says: how often a run is looked at must not change it.
        self.remeasure = measuring_steps(self.steps) if self.solver.measures(state) else set()
        run = loop.first(self.solver, self.problem, state, self.key)
        record = Recorder(self.problem, self.solver, self.seed)
        record.add(0, run, started=True)
        step, status, message = 0, "finished", ""
        try:
            shown.show(0, record.worst, record.mean)
            while step < self.steps:
                if self.halt.is_set():
                    raise KeyboardInterrupt
                run, step, bad = self.advance(run, step)
                if bad is not None:
                    status, message = "diverged", bad
                    break
                if step in self.remeasure and step < self.steps:
                    key = jax.random.fold_in(self.refresh_key, step)
                    run = run._replace(state=measure(self.solver, self.problem, run.state, key, 1))
                if step % self.every == 0 or step == self.steps:
                    stop = record.add(step, run, callback=self.callback)
                    run = run._replace(watch=loop.Watch.start(run.state.weights))
                    shown.show(step, record.worst, record.mean)
                    if stop or (self.patience is not None and record.since_best >= self.patience):
                        why = "the callback asked for it" if stop else f"{self.patience} evaluations brought no better"
                        status, message = "stopped early", f"Stopped because {why}."
                        break
                else:
                    shown.show(step)
        except KeyboardInterrupt:
            status, message = "interrupted", "Interrupted; this is what there is."
        if record.steps[-1] != step:
            record.add(step, run)
        if status == "diverged":
            warnings.warn(message, stacklevel=4)
        return record.result(run, step, status, message)

    def advance(self, run: loop.Run, step: int) -> tuple[loop.Run, int, str | None]:
        """One compiled call: to the next place where something is due, or for about `CALL_SECONDS`."""
        stop = min(step - step % self.every + self.every, self.steps)
        stop = min([stop, *(due for due in self.remeasure if due > step)])
        if self.steps_per_second is not None:
            stop = min(stop, step + max(1, int(self.steps_per_second * CALL_SECONDS)))
        picked = self.picks[(self.picks >= step) & (self.picks < stop)]
        pick = int(picked[-1]) if len(picked) else self.steps
        began = time.perf_counter()
        after = jax.block_until_ready(loop.steps(self.solver, self.problem, run, self.key, stop, pick))
        if bool(after.finite):
            # The first call compiles, so its time says nothing.
            elapsed = time.perf_counter() - began
            self.steps_per_second = (stop - step) / elapsed if self.steps_per_second is not None else 1 / elapsed
            return after, stop, None
        return self.last_finite(run, after, step)

    def last_finite(self, run: loop.Run, after: loop.Run, step: int) -> tuple[loop.Run, int, str]:
        """Runs again from the last good state up to just before it broke: cheaper than checking all in every step."""
        broken = int(after.state.step) - 1
        message = _explain(self.problem, self.solver, after.info, broken)
        back = 1
        stop = broken
        while stop > step:
            again = loop.steps(self.solver, self.problem, run, self.key, stop, self.steps)
            if bool(again.finite):
                return again, stop, message
            stop, back = stop - back, 2 * back
        return run, step, message


def measuring_steps(steps: int) -> set[int]:
    """When curvature is measured again: at 1, 2, 4, 8, ..., as it changes most at first, and every twentieth."""
    return {2**i for i in range(steps.bit_length())} | set(range(0, steps, max(1, steps // 20)))


def _explain(problem: Grouped, solver: Any, info: Info, step: int) -> str:
    losses = np.asarray(info.losses)
    broken = np.flatnonzero(~np.isfinite(losses))
    if len(broken):
        i = int(broken[0])
        what = f"the loss of task {problem.names[i]!r} became {losses[i]}"
        rate = f"upper_lr (it was {float(info.upper_rate):.3g})"
        if hasattr(solver, "lower_lr"):
            rate += f" or lower_lr (its rate was {float(info.lower_rate[i]):.3g})"
    else:
        broken = "the direction of x" if not np.isfinite(info.direction_norm) else "x, y or the weights"
        what = f"{broken} became infinite or NaN"
        rate = f"upper_lr (it was {float(info.upper_rate):.3g})"
    given = solver.upper_lr is not None or getattr(solver, "lower_lr", None) is not None
    chosen = ", or None to have the rates chosen" if given and solver.chooses_rates else ""
    return (
        f"{type(solver).__name__} diverged: at step {step} {what}. Try a smaller {rate}{chosen}, "
        "or a larger batch. The result holds the last finite state."
    )
