"""The driver: the only place that compiles and loops.

A run is a sequence of compiled calls, each a loop of steps whose length is data: neither the number of steps nor how
often the run is evaluated changes what is compiled. Between calls the driver evaluates, re-measures, shows progress and
decides whether to go on. Step k draws from fold_in(key, k), so how a run is cut into calls does not change it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel import checks, tree
from bilevel.problem import Problem
from bilevel.progress import Bar, bar
from bilevel.recorder import Recorder
from bilevel.result import Result
from bilevel.solvers.base import BilevelSolver, Info, measure

AVERAGE_POWER = 3  # weights ~ k^3: nearly half of the run counts, its end the most
CALL_SECONDS = 0.5  # about how long one compiled call may take, so that the bar moves and Ctrl-C is heard


class Point(NamedTuple):
    """What an iterate consists of."""

    x: Any
    y: tuple
    weights: jax.Array


class Run(NamedTuple):
    """What a compiled call carries."""

    state: Any
    average: Point
    random: Point
    info: Info  # of the last step
    squares: jax.Array  # sum of squared direction norms since the last evaluation
    finite: jax.Array


def solve(
    problem: Problem,
    solver: BilevelSolver,
    x: Any,
    y: Any = None,
    *,
    steps: int,
    seed: int = 0,
    every: int | None = None,
    progress: bool = True,
    patience: int | None = None,
    callback: Callable[[dict[str, Any]], bool | None] | None = None,
) -> Result:
    """Runs a solver on a problem.

    Args:
        problem: what to solve.
        solver: how, for instance `bl.MORBiT()`.
        x: where the shared variable starts, any pytree of floating arrays.
        y: where the tasks' variables start: one pytree for all tasks, a dict by task name, or a function of
            (key, task); None = the tasks brought theirs.
        steps: how many steps.
        seed: of everything random.
        every: evaluate on all the data every so many steps; None = steps // 100.
        progress: show a progress bar where there is a terminal.
        patience: stop after so many evaluations without a lower worst validation loss; None = never.
        callback: called with each evaluation (a dict with step, validation, test, weights, ...); True stops the run.

    Returns:
        A `Result`. Ctrl-C ends the run early and returns what there is; a run that diverges ends with a warning and
        returns its last finite state.

    >>> import bilevel as bl
    >>> known = bl.problems.enclosing_ball()
    >>> result = bl.solve(known.problem, bl.MORBiT(), known.x, steps=2000, progress=False)
    >>> bool(abs(result.worst - known.value) < 0.01)
    True
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"solve(problem=...) got {type(problem).__name__}: it needs a bl.Problem.")
    if not hasattr(solver, "step") or isinstance(solver, type):
        raise TypeError(f"solve(solver=...) got {solver!r}: it needs a solver object, such as bl.MORBiT().")
    checks.check_count("steps", steps)
    every = max(1, steps // 100) if every is None else every
    checks.check_count("every", every)
    if patience is not None:
        checks.check_count("patience", patience)

    if callback is not None and not callable(callback):
        raise TypeError(f"solve(callback=...) got {callback!r}: it needs a function of one evaluation.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"solve(seed={seed!r}): it needs a whole number, 0 or more.")

    key = jax.random.key(seed)
    state = solver.init(problem, x, y, key=jax.random.fold_in(key, 0), steps=steps)
    drive = _Drive(problem, solver, jax.random.fold_in(key, 1), seed, steps, every, patience, callback)
    with bar(type(solver).__name__, steps, progress) as shown:
        return drive.go(state, shown)


class _Drive:
    """One run."""

    def __init__(self, problem, solver, key, seed, steps, every, patience, callback):
        self.problem, self.solver, self.key, self.seed, self.steps = problem, solver, key, seed, steps
        self.every, self.patience, self.callback = every, patience, callback
        self.remeasure = _measuring_steps(steps)  # not `every`: how often a run is looked at must not change it
        # Reservoir sampling decided beforehand: step k replaces the random iterate with probability 1 / (k + 1).
        self.picks = np.flatnonzero(np.random.default_rng(seed).random(steps) * np.arange(1, steps + 1) < 1)
        self.refresh_key = jax.random.fold_in(key, 2**31)  # apart from the keys of steps
        self.steps_per_second = None

    def go(self, state: Any, shown: Bar) -> Result:
        """Steps until the end, or until something ends the run before."""
        run = _first(self.solver, self.problem, state, self.key)
        record = Recorder(self.problem, self.solver, self.seed)
        record.add(0, run, started=True)
        step, status, message = 0, "finished", ""
        try:
            shown.show(0, record.worst, record.mean)
            while step < self.steps:
                run, step, bad = self.advance(run, step)
                if bad is not None:
                    status, message = "diverged", bad
                    break
                if step in self.remeasure and step < self.steps:
                    key = jax.random.fold_in(self.refresh_key, step)
                    run = run._replace(state=measure(self.solver, self.problem, run.state, key, 1))
                if step % self.every == 0 or step == self.steps:
                    stop = record.add(step, run, callback=self.callback)
                    run = run._replace(squares=jnp.zeros_like(run.squares))
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

    def advance(self, run: Run, step: int) -> tuple[Run, int, str | None]:
        """One compiled call: to the next place where something is due, or for about `CALL_SECONDS`."""
        stop = min(step - step % self.every + self.every, self.steps)
        stop = min([stop, *(due for due in self.remeasure if due > step)])
        if self.steps_per_second is not None:
            stop = min(stop, step + max(1, int(self.steps_per_second * CALL_SECONDS)))
        picked = self.picks[(self.picks >= step) & (self.picks < stop)]
        pick = int(picked[-1]) if len(picked) else self.steps
        began = time.perf_counter()
        after = jax.block_until_ready(_steps(self.solver, self.problem, run, self.key, stop, pick))
        if bool(after.finite) and bool(_is_finite(after.state)):
            # The first call compiles, so its time says nothing.
            elapsed = time.perf_counter() - began
            self.steps_per_second = (stop - step) / elapsed if self.steps_per_second is not None else 1 / elapsed
            return after, stop, None
        return self.last_finite(run, after, step)

    def last_finite(self, run: Run, after: Run, step: int) -> tuple[Run, int, str]:
        """Runs again from the last good state up to just before it broke: cheaper than checking all in every step."""
        broken = int(after.state.step) - 1
        message = _explain(self.problem, self.solver, after.info, broken)
        back = 1
        stop = broken
        while stop > step:
            again = _steps(self.solver, self.problem, run, self.key, stop, self.steps)
            if bool(_is_finite(again.state)):
                return again, stop, message
            stop, back = stop - back, 2 * back
        return run, step, message


def _measuring_steps(steps: int) -> set[int]:
    """When curvature is measured again: at 1, 2, 4, 8, ..., as it changes most at first, and every twentieth."""
    return {2**i for i in range(steps.bit_length())} | set(range(0, steps, max(1, steps // 20)))


@jax.jit
def _first(solver: Any, problem: Problem, state: Any, key: jax.Array) -> Run:
    point = Point(state.x, state.y, state.weights)
    _, info = jax.eval_shape(solver.step, problem, state, key)
    nothing = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), info)
    return Run(state, point, point, nothing, jnp.zeros((), state.weights.dtype), jnp.array(True))


@jax.jit
def _steps(solver: Any, problem: Problem, run: Run, key: jax.Array, stop: Any, pick: Any) -> Run:
    """Steps up to `stop`; the state before step `pick`, with y after it, becomes the random iterate."""

    def one(run: Run) -> Run:
        state, info = solver.step(problem, run.state, jax.random.fold_in(key, run.state.step))
        k = state.step.astype(run.squares.dtype)
        share = (1 + AVERAGE_POWER) / (k + AVERAGE_POWER)
        point = Point(state.x, state.y, state.weights)
        average = jax.tree.map(lambda a, p: a + (share * (p - a)).astype(a.dtype), run.average, point)
        squares = run.squares + info.direction_norm**2
        finite = jnp.all(jnp.isfinite(info.losses)) & jnp.isfinite(info.direction_norm)
        return Run(state, average, run.random, info, squares, finite)

    # Three stretches, before the picked step, the step itself and after it, in a loop so that `one` is compiled once.
    ends = jnp.stack([jnp.minimum(pick, stop), jnp.minimum(pick + 1, stop), jnp.asarray(stop)])

    def stretch(run: Run, part: tuple) -> tuple[Run, None]:
        number, end = part
        run = jax.lax.while_loop(lambda run: (run.state.step < end) & run.finite, one, run)
        state, kept = run.state, run.random
        here, after = (pick < stop) & (number == 0), (pick < stop) & (number == 1)
        choose = lambda when, new, old: jax.tree.map(lambda n, o: jnp.where(when, n, o), new, old)  # noqa: E731
        kept = Point(
            choose(here, state.x, kept.x),
            choose(after, state.y, kept.y),
            choose(here, state.weights, kept.weights),
        )
        return run._replace(random=kept), None

    return jax.lax.scan(stretch, run, (jnp.arange(3), ends))[0]


_is_finite = jax.jit(lambda state: tree.all_finite((state.x, state.y, state.weights)))


def _explain(problem: Problem, solver: Any, info: Info, step: int) -> str:
    losses = np.asarray(info.losses)
    broken = np.flatnonzero(~np.isfinite(losses))
    if len(broken):
        i = int(broken[0])
        what = f"the loss of task {problem.names[i]!r} became {losses[i]}"
        rate = (
            f"upper_lr (it was {float(info.upper_rate):.3g}) or lower_lr (its rate was {float(info.lower_rate[i]):.3g})"
        )
    else:
        broken = "the direction of x" if not np.isfinite(info.direction_norm) else "x, y or the weights"
        what = f"{broken} became infinite or NaN"
        rate = f"upper_lr (it was {float(info.upper_rate):.3g})"
    given = solver.upper_lr is not None or solver.lower_lr is not None
    chosen = ", or None to have the rates chosen" if given else ""
    return (
        f"{type(solver).__name__} diverged: at step {step} {what}. Try a smaller {rate}{chosen}, "
        "or a larger batch. The result holds the last finite state."
    )
