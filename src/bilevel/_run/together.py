"""Many seeds as one batched run, for accelerators; on a CPU a thread per core is faster, and equals single runs.

Every seed draws as it would alone. What differs from single runs: rounding, because batched products are summed in
another order, and the random iterate, which is of the same step in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bilevel._core import pytrees
from bilevel._run import loop
from bilevel._run.driver import Drive, Plan, measuring_steps
from bilevel._run.progress import Bar
from bilevel._run.recorder import Recorder
from bilevel.results.result import Result


@jax.jit
def _first(solver: Any, problem: Any, states: Any, keys: jax.Array) -> loop.Run:
    return jax.vmap(functools.partial(loop.first, solver, problem))(states, keys)


@jax.jit
def _steps(solver: Any, problem: Any, runs: loop.Run, keys: jax.Array, stop: Any, pick: Any) -> loop.Run:
    return jax.vmap(lambda run, key: loop.steps(solver, problem, run, key, stop, pick))(runs, keys)


@jax.jit
def _measure(solver: Any, problem: Any, states: Any, keys: jax.Array) -> Any:
    return jax.vmap(lambda state, key: solver.refresh(problem, state, key, 1))(states, keys)


def run_together(drives: Sequence[Drive], states: Sequence[Any], plan: Plan, shown: Bar) -> list[Result | None]:
    """The results of all drives, which have one problem and one solver; None for those that diverge."""
    lead, count = drives[0], len(drives)
    problem, solver = lead.problem, lead.solver
    keys, refresh_keys = (pytrees.stack([getattr(d, name) for d in drives]) for name in ("key", "refresh_key"))
    remeasure = measuring_steps(plan.steps) if solver.measures(states[0]) else set()
    due = sorted({*range(plan.every, plan.steps, plan.every), *remeasure, plan.steps} - {0})
    records = [Recorder(problem, solver, drive.seed) for drive in drives]
    parts = shown.split(count)
    runs = _first(solver, problem, pytrees.stack(states), keys)
    step, status, message = 0, "finished", ""

    def look(started: bool = False) -> None:
        for i, finite in enumerate(np.asarray(runs.finite)):
            if finite:
                records[i].add(step, pytrees.index(runs, i), started=started)
                parts[i].show(step, records[i].worst, records[i].mean)

    look(started=True)
    try:
        for stop in due:
            picked = lead.picks[(lead.picks >= step) & (lead.picks < stop)]
            pick = int(picked[-1]) if len(picked) else plan.steps
            runs = jax.block_until_ready(_steps(solver, problem, runs, keys, stop, pick))
            step = stop
            if step in remeasure and step < plan.steps:
                at = jax.vmap(lambda key, k=step: jax.random.fold_in(key, k))(refresh_keys)
                runs = runs._replace(state=_measure(solver, problem, runs.state, at))
            if step % plan.every == 0 or step == plan.steps:
                look()
                runs = runs._replace(watch=jax.vmap(loop.Watch.start)(runs.state.weights))
    except KeyboardInterrupt:
        status, message = "interrupted", "Interrupted; this is what there is."
        if records[0].steps[-1] != step:
            look()
    finite = np.asarray(runs.finite)
    return [
        record.result(pytrees.index(runs, i), step, status, message) if finite[i] else None
        for i, record in enumerate(records)
    ]
